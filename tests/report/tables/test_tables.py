"""Tables and text pictures show the given values."""

import re
from dataclasses import replace

from builders import Part, make_plan
from rich.console import Console, RenderableType

from graphpipe.plans import Plan, Prediction
from graphpipe.report import Outcome, compare_table, measured_table, summarise, summary_lines
from graphpipe.report.content.wording import abbreviate, span_of_names
from graphpipe.report.figures.mermaid import mermaid
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Span, Trace
from graphpipe.trace.compare import compare

# Two branches join in stage 2, which has two replicas. A sample takes one second forward and two backward per stage.
# A mini-batch has 4 samples, a micro-batch 2.
PLAN = make_plan(
    [Part(micro_batch=2), Part(micro_batch=2), Part(micro_batch=2, degree=2)],
    [(0, 2, 0.0), (1, 2, 0.0)],
    batch_size=4,
    device_count=5,
)
PREDICTION = Prediction(step_seconds=8.0, bubble_fraction=0.25, peak_bytes=(1024.0, 2048.0, 512.0, 512.0, 0.0))


def draw(what: RenderableType, width: int = 140) -> list[str]:
    """Return the lines that a terminal of this width shows."""
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return capture.get().splitlines()


def row(lines: list[str], name: str) -> list[str]:
    """Return the cells of the row whose first cell is `name`."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return next(line for line in cells if line[0] == name)


def test_a_summary_has_figures_and_sentences() -> None:
    summary = summarise(PLAN, PREDICTION)
    assert (summary.stages, summary.depth, summary.micro_batch, summary.samples_per_second) == (3, 2, 2, 0.5)
    assert summary.unused_devices == ("d4",)
    figures, gap, unused = summary_lines(summary)
    assert "3 stages, depth 2, micro-batch 2 of 4; step 8.00 s, 0.5 samples/s, bubble 25.0%, peak 2.00 KiB" in figures
    assert gap == f"{-summary.gap_percent:.1f} % below a lower bound on {summary.gap_covers}"  # its step is made up
    assert summary.gap_covers == "every plan with one stage on each device and whole state in every replica"
    assert unused == "1 device is left unused: d4"


def test_many_unused_devices_are_counted() -> None:
    plan = make_plan([Part()], device_count=8)
    prediction = Prediction(step_seconds=1.0, bubble_fraction=0.0, peak_bytes=(0.0,) * 8)
    assert summary_lines(summarise(plan, prediction))[2] == "7 devices are left unused: d1, d2, d3, d4 and 3 more"


def test_plan_table_has_a_row_per_stage() -> None:
    lines = draw(plan_table(PLAN, PREDICTION))
    assert "test on test: mini-batch 4, 1f1b" in lines[0]
    assert row(lines, "s1") == ["s1", "s1", "d1", "2", "4", "2.00 s", "4.00 s", "2.00 KiB (0%)", "s2"]
    # Two replicas compute one sample each, in half the time.
    assert row(lines, "s2")[3:] == ["2 x 1", "2", "1.00 s", "2.00 s", "512 B (0%)", "-"]


def test_a_plan_that_recomputes_has_a_column_for_it() -> None:
    stages = (replace(PLAN.stages[0], recompute="full"), PLAN.stages[1], replace(PLAN.stages[2], recompute=("s2",)))
    lines = draw(plan_table(replace(PLAN, stages=stages), PREDICTION))
    assert [row(lines, name)[-1] for name in ("s0", "s1", "s2")] == ["full", "-", "s2"]
    # The backward of a micro-batch repeats its forward, which takes each replica 1 s.
    assert row(lines, "s2")[5:7] == ["1.00 s", "3.00 s"]
    assert "recomputes" not in " ".join(draw(plan_table(PLAN, PREDICTION)))
    boxes = mermaid(replace(PLAN, stages=stages)).splitlines()
    assert boxes[1].endswith('micro 2<br>recomputes all"]')
    assert boxes[3].endswith('micro 2 × 1<br>recomputes"]')


def test_a_plan_that_shards_has_a_column_for_it() -> None:
    stages = (*PLAN.stages[:2], replace(PLAN.stages[2], state="optimizer"))
    plan = replace(PLAN, stages=stages)
    assert [row(draw(plan_table(plan, PREDICTION)), name)[-1] for name in ("s0", "s1", "s2")] == ["-", "-", "optimizer"]
    assert "shards" not in " ".join(draw(plan_table(PLAN, PREDICTION)))
    assert mermaid(plan).splitlines()[3].endswith('micro 2 × 1<br>shards optimizer"]')


def test_operators_are_abbreviated_by_branch() -> None:
    assert abbreviate(["a.0", "a.1", "a.2", "b.0", "b.1", "head"]) == "a.0 .. 2 (3)\nb.0, b.1\nhead"
    assert abbreviate([f"{branch}.0" for branch in "abcdef"]) == "a.0\nb.0\nc.0\nand 3 more (6 in all)"
    assert span_of_names("node0/v100-1", "node0/v100-12") == "node0/v100-1 .. 12"
    assert span_of_names("node4", "node9") == "node4 .. node9"


def test_compare_table_shows_ratios_to_the_best_plan() -> None:
    slow = summarise(PLAN, Prediction(step_seconds=12.0, bubble_fraction=0.5, peak_bytes=(0.0,) * 5))
    outcomes = [
        Outcome(planner="one", status="ok", summary=slow),
        Outcome(planner="two", status="ok", summary=summarise(PLAN, PREDICTION)),
        Outcome(planner="three", status="infeasible", reason="no"),
    ]
    lines = draw(compare_table(outcomes))
    assert row(lines, "one")[1:3] == ["12.0 s", "1.50x"]
    assert row(lines, "two")[1:3] == ["8.00 s", "1.00x"]
    assert row(lines, "three")[1] == "infeasible"


def trace(plan: Plan, forward: float, step: float) -> Trace:
    """Return a trace of one device: two forwards from time 0, then two backwards half as long, then idle time."""
    times = [("F", 0, 0.0, forward), ("F", 1, forward, 2 * forward)]
    times += [("B", 0, 2 * forward, 2.5 * forward), ("B", 1, 2.5 * forward, 3 * forward)]
    return Trace(
        source="simulated",
        plan_fingerprint=plan.fingerprint,
        batch_size=4,
        device_names=("d0", "d1"),
        used_devices=(0,),
        step_seconds=step,
        spans=tuple(
            Span(device=0, kind=kind, stage=0, micro_batch=number, start_seconds=start, end_seconds=end)  # type: ignore[arg-type]
            for kind, number, start, end in times
        ),
    )


def test_timeline_is_to_scale() -> None:
    picture = timeline(trace(PLAN, forward=2.0, step=8.0), width=4 + 16).plain.splitlines()
    assert picture[0] == "d0  00001111aabb...."
    assert "one character is 500 ms" in picture[1]
    assert len(picture) == 2  # d1 is not used


def test_the_timeline_of_a_plan_has_a_row_per_stage() -> None:
    picture = timeline(simulate(PLAN), width=80, plan=PLAN).plain.splitlines()
    assert [line.split("  ")[0] for line in picture[:3]] == ["s0", "s1", "s2 × 2"]
    assert len(picture) == 4  # four devices, of which two are replicas


def test_measured_table_begins_with_the_step() -> None:
    difference = compare(trace(PLAN, 2.0, 8.0), trace(PLAN, 3.0, 9.0))
    lines = draw(measured_table(difference, ["s0", "s1", "s2"]))
    assert row(lines, "step") == ["step", "8.00 s", "9.00 s", "1", "+1.00 s"]
    assert row(lines, "forward, s0") == ["forward, s0", "2.00 s", "3.00 s", "2", "+2.00 s"]
    assert row(lines, "backward, s0") == ["backward, s0", "1.00 s", "1.50 s", "2", "+1.00 s"]
