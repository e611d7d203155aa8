"""The timeline shows every span once, a name for every gap, and samples as the runtime divides them."""

from builders import Part, make_plan
from subjects import PLAN, PREDICTED, slower, whole_subject

from graphpipe.report.content.subject import Subject
from graphpipe.report.content.weight_reads import version_rows
from graphpipe.report.figures.palette import code, colour, colours, ink, kinds, stage_colour
from graphpipe.report.figures.timeline_rows import timeline_rows
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Span, Trace


def trace_of(*tasks: tuple[str, float, float]) -> Trace:
    """Return a trace of one device and 10 seconds."""
    return Trace(
        source="simulated",
        plan_fingerprint="p",
        batch_size=4,
        device_names=("d0",),
        used_devices=(0,),
        step_seconds=10.0,
        spans=tuple(
            Span(device=0, kind=kind, stage=0, micro_batch=at, start_seconds=start, end_seconds=end)  # type: ignore[arg-type]
            for at, (kind, start, end) in enumerate(tasks)
        ),
    )


def idle_times(trace: Trace) -> list[tuple[str, float, float]]:
    _, columns = timeline_rows(Subject(title="", predicted=trace))
    found = zip(columns.code, columns.stage, columns.start, columns.end, strict=True)
    return [(kinds(1)[shade], start, end) for shade, stage, start, end in found if stage < 0]


def test_gaps_are_warm_up_then_bubbles_then_drain() -> None:
    trace = trace_of(("F", 1.0, 2.0), ("F", 2.0, 3.0), ("B", 5.0, 8.0))
    assert idle_times(trace) == [("warm-up", 0.0, 1.0), ("bubble", 3.0, 5.0), ("drain", 8.0, 10.0)]


def test_a_busy_device_has_no_idle_time() -> None:
    assert idle_times(trace_of(("F", 0.0, 4.0), ("B", 4.0, 10.0))) == []
    # In a measured trace a task may lie inside another one. This does not make a gap.
    assert idle_times(trace_of(("F", 0.0, 9.0), ("B", 1.0, 2.0), ("W", 9.0, 10.0))) == []


def test_idle_and_busy_seconds_add_up_to_the_step() -> None:
    rows, columns = timeline_rows(whole_subject())
    for number, row in enumerate(rows):
        if not row.transfers:
            lengths = [e - s for r, s, e in zip(columns.row, columns.start, columns.end, strict=True) if r == number]
            step = PREDICTED.step_seconds * (1.25 if row.source == "measured" else 1.0)
            assert abs(sum(lengths) - step) < 1e-6


def test_predicted_rows_are_above_measured_rows_with_transfers_between_them() -> None:
    rows, columns = timeline_rows(whole_subject())
    first = [(row.source, row.transfers) for row in rows if row.device == "d0"]
    assert first == [("predicted", False), ("predicted", True), ("measured", False), ("measured", True)]
    spans = sum(stage >= 0 for stage in columns.stage)
    assert spans == 2 * len(PREDICTED.spans)


def test_samples_are_the_replicas_own() -> None:
    rows, columns = timeline_rows(Subject(title="", plan=PLAN, predicted=PREDICTED))
    found = {
        (rows[row].device, micro_batch): (first, count)
        for row, stage, micro_batch, first, count in zip(
            columns.row, columns.stage, columns.micro_batch, columns.first_sample, columns.samples, strict=True
        )
        if stage == 2 and count
    }
    # Each of two replicas has one sample of every micro-batch of 2.
    assert found["d2", 0] == (0, 1)
    assert found["d3", 0] == (1, 1)
    assert found["d3", 3] == (7, 1)


def test_mini_batches_have_shades_in_turn_and_tasks_the_version_that_they_read() -> None:
    # Two micro-batches in a mini-batch: F0 F1 F2 B0 F3 B1 U0 F4. So F4 is the first that reads what update 0 has made.
    plan = with_policy(make_plan([Part()] * 3, batch_size=2), "stash")
    _, columns = timeline_rows(Subject(title="", plan=plan, predicted=simulate(plan, mini_batches=3)))
    found = {
        (kinds(3)[columns.code[at]], columns.micro_batch[at]): (columns.odd[at], columns.version[at])
        for at, stage in enumerate(columns.stage)
        if stage == 0
    }
    assert [found["F", number] for number in range(6)] == [
        *((False, 0), (False, 0), (True, 0), (True, 0)),
        *((False, 1), (False, 1)),
    ]
    assert [found["B", number][1] for number in range(6)] == [0, 0, 0, 0, 1, 1]
    assert found["optimizer", 1] == (False, -1)
    flushed = timeline_rows(Subject(title="", plan=PLAN, predicted=PREDICTED))[1]
    assert (any(flushed.odd), set(flushed.version)) == (False, {-1})


def test_the_table_of_versions_names_what_is_reconstructed() -> None:
    plan = with_policy(make_plan([Part()] * 3, batch_size=1), "moving-average")
    rows = version_rows(plan, simulate(plan, mini_batches=5))
    assert rows == [("s0", 3, "1", "1 from 3", 4), ("s1", 3, "2", "2 from 3", 4), ("s2", 3, "3", "3", 4)]


def test_a_measured_trace_without_a_prediction_is_shown() -> None:
    rows, _ = timeline_rows(Subject(title="", measured=slower(PREDICTED, 2.0)))
    assert {row.source for row in rows} == {"measured"}


def test_every_code_has_a_colour_and_a_kind() -> None:
    assert len(colours(14)) == len(kinds(14))
    for stage in (0, 7, 13):
        for kind in ("F", "B", "I", "W", "send", "optimizer", "bubble"):
            assert kinds(14)[code(kind, stage)] == kind
            assert colours(14)[code(kind, stage)] == colour(kind, stage)
    assert (ink("#ffffff"), ink("#101010")) == ("#000000", "#ffffff")


def test_no_colour_repeats_among_many_stages() -> None:
    assert len({stage_colour(stage) for stage in range(128)}) == 128
    shades = colours(32)[-32 * 4 :]
    assert len(set(shades)) == len(shades)
