"""Schedules that split backwards: their order, their verification and their lowering."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.schedule import Compute, Reduce, Schedule, Send, StageTask
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify import verify
from graphpipe.simulator import predict

TWO = make_plan([Part(), Part(in_flight=2)], batch_size=2)


def line(plan: Plan, device: int) -> str:
    return " ".join(map(str, build_schedule(plan).devices[device])).replace(f"{device}.", "")


def check(plan: Plan, *lines: str) -> None:
    verify(plan, Schedule.parse("\n".join(["schedule hand", *(f"{at}: {text}" for at, text in enumerate(lines))])))


def test_h1_on_a_chain_delays_weight_gradients_by_the_longest_warm_up_of_an_earlier_stage():
    plan = make_plan([Part(in_flight=3)] * 3, batch_size=5, schedule="zb-h1")
    assert line(plan, 0) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert line(plan, 1) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4"
    assert line(plan, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4"


def test_h1_without_spare_memory_does_not_delay_weight_gradients():
    plan = make_plan([Part()] * 3, batch_size=4, schedule="zb-h1")
    assert line(plan, 2) == "F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3"


def test_h1_on_a_short_branch_counts_only_the_warm_up_of_its_ancestors():
    # 0 -> 1 -> 3 <- 2: stage 3 delays because of stage 0, and stage 2 has no ancestor.
    plan = make_plan([Part(in_flight=9)] * 4, [(0, 1, 0.0), (1, 3, 0.0), (2, 3, 0.0)], batch_size=9, schedule="zb-h1")
    assert line(plan, 3).startswith("F0 I0 F1 I1 F2 I2 W0 F3")
    assert line(plan, 2).startswith("F0 F1 B0 F2 B1")


def test_a_stage_without_weights_does_not_split_its_backwards():
    plan = make_plan([Part(), Part(in_flight=2)], batch_size=3)
    rows = tuple(replace(row, weight_gradient=replace(row.weight_gradient, lines=())) for row in plan.costs.rows)
    for name in ("zb-h1", "zb-auto"):
        frozen = replace(plan, costs=replace(plan.costs, rows=rows), schedule=name)
        assert line(frozen, 1) == "F0 B0 F1 B1 F2 B2"


@pytest.mark.parametrize("name", ["zb-h1", "zb-auto"])
def test_too_few_samples_in_flight_is_an_error(name: str):
    plan = make_plan([Part(in_flight=1), Part(micro_batch=2)], chain(2), batch_size=8, schedule=name)
    with pytest.raises(InvalidInput, match="wait for each other forever"):
        build_schedule(plan)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ("F1.0 I1.0 F1.1 I1.1 W1.0", r"does not list W1.1 \(1 tasks are missing\)"),
        ("F1.0 W1.0 F1.1 B1.1", r"does not list I1.0 \(1 tasks are missing\)"),
        ("F1.0 I1.0 B1.0 W1.0 F1.1 B1.1", "lists I1.0 beside B1.0: a backward is whole or in two halves"),
        ("F1.0 W1.0 I1.0 F1.1 B1.1", "W1.0 comes before I1.0"),
        ("I1.0 F1.0 W1.0 F1.1 B1.1", "I1.0 comes before F1.0"),
        ("F1.0 F1.1 I1.1 I1.0 W1.0 W1.1", "I1.1 comes before I1.0"),
        ("F1.0 F1.1 I1.0 I1.1 W1.1 W1.0", "W1.1 comes before W1.0"),
        ("F1.0 I1.0 F1.1 B1.1 W1.0", "B1.1 comes before B1.0"),
    ],
)
def test_an_invalid_split_of_a_backward_is_refused(mine: str, message: str):
    with pytest.raises(InvalidInput, match=message):
        check(TWO, "F0.0 F0.1 B0.0 B0.1", mine)


def test_a_schedule_may_mix_whole_and_split_backwards():
    check(TWO, "F0.0 F0.1 I0.0 W0.0 B0.1", "F1.0 I1.0 F1.1 I1.1 W1.0 W1.1")


def test_a_sample_is_in_flight_until_its_weight_gradient():
    plan = make_plan([Part(in_flight=2)], batch_size=3)
    waiting = "F0.0 I0.0 F0.1 I0.1 F0.2 I0.2 W0.0 W0.1 W0.2"
    with pytest.raises(InvalidInput, match=r"with F0.2, 3 samples are in flight at stage 's0', which allows 2"):
        check(plan, waiting)
    half = replace(plan, costs=replace(plan.costs, kept_for_weight_gradient=0.5))
    check(half, waiting)  # 0.5 + 0.5 + 1


def test_gradients_are_sent_after_the_input_half_and_reduced_after_the_last_weight_half():
    plan = make_plan([Part(micro_batch=2, degree=2)] * 2, batch_size=4)
    first, second = "F0.0 F0.1 B0.0 B0.1", "F1.0 I1.0 W1.0 F1.1 I1.1 W1.1"
    text = f"schedule hand\n0: {first}\n1: {first}\n2: {second}\n3: {second}\n"
    mine = lower(plan, Schedule.parse(text)).devices[2]
    sent = [action.transfer for action in mine if isinstance(action, Send)]
    assert [(transfer.source_task, transfer.target_task) for transfer in sent] == [
        (StageTask("I", 1, 0), StageTask("B", 0, 0)),
        (StageTask("I", 1, 1), StageTask("B", 0, 1)),
    ]
    assert mine.index(Send(sent[0])) == mine.index(Compute(StageTask("I", 1, 0))) + 1
    assert mine[-1] == Reduce(1)
    assert [action for action in mine if isinstance(action, Reduce)] == [Reduce(1)]


def test_a_plan_raises_in_flight_samples_to_the_free_memory_of_its_devices():
    # State 4 x 10; 7 bytes a sample, over two replicas for stage 1; 2 and 2 samples in flight, 16 in the batch.
    parts = [Part(saved_bytes=7, parameter_bytes=10), Part(saved_bytes=7, micro_batch=2, degree=2, in_flight=2)]
    plan = make_plan(parts, batch_size=16)
    assert needed_bytes(plan) == {0: 40 + 4 * 7, 1: 7, 2: 7}
    assert [stage.in_flight for stage in with_room(plan, 68).stages] == [4, 16]
    assert [stage.in_flight for stage in with_room(plan, 75).stages] == [5, 16]
    assert [stage.in_flight for stage in with_room(plan, 24).stages] == [4, 6]
    assert [stage.in_flight for stage in with_room(plan).stages] == [16, 16]


def test_stages_on_one_device_share_its_free_memory():
    plan = make_plan([Part(saved_bytes=1, devices=(0,), in_flight=2), Part(saved_bytes=2, devices=(0,))], batch_size=9)
    assert [stage.in_flight for stage in with_room(plan, 4 + 8).stages] == [6, 3]


@settings(max_examples=20, deadline=None)
@given(plans(), st.sampled_from(["zb-h1", "zb-auto"]), st.sampled_from([1.0, 0.5]), st.booleans())
def test_every_split_schedule_passes_the_verifier(plan: Plan, name: str, kept: float, roomy: bool):
    plan = replace(plan, schedule=name, costs=replace(plan.costs, kept_for_weight_gradient=kept))
    plan = with_room(plan) if roomy else plan
    found = build_schedule(plan)  # Verified.
    assert Schedule.parse(str(found)) == found
    lowered = lower(plan, found)
    for device, tasks in enumerate(found.devices):
        assert tasks == tuple(action.task for action in lowered.devices[device] if isinstance(action, Compute))


@settings(max_examples=20, deadline=None)
@given(
    plans(batch_size=8, micro_batches=(1, 2)), st.sampled_from([0.0, 30.0, 1e9]), st.sampled_from(["zb-h1", "zb-auto"])
)
def test_more_samples_in_flight_stay_within_the_memory_limit(plan: Plan, more: float, name: str):
    plan = replace(plan, costs=replace(plan.costs, kept_for_weight_gradient=1.0))  # without the gradients that wait
    limit = max(needed_bytes(plan).values()) + more
    found = replace(with_room(plan, limit), schedule=name)
    assert max(needed_bytes(found).values()) <= limit + 1e-6
    assert max(predict(found).peak_bytes) <= limit + 1e-6
    assert all(new.in_flight >= old.in_flight for new, old in zip(found.stages, plan.stages, strict=True))


def test_the_share_kept_for_weight_gradients_must_be_0_to_1():
    with pytest.raises(InvalidInput, match=r"kept_for_weight_gradient: is 1\.5, must be 0 to 1"):
        replace(TWO.costs, kept_for_weight_gradient=1.5)


def test_only_stages_that_recompute_do_whole_backwards():
    parts = [Part(saved_bytes=3), Part(saved_bytes=3, recompute="full"), Part(saved_bytes=3), Part()]
    for name in ("zb-h1", "zb-auto"):
        plan = with_room(make_plan(parts, batch_size=8, schedule=name))
        found = build_schedule(plan)
        halved = {task.stage for tasks in found.devices for task in tasks if task.kind == "I"}
        assert halved == {2, 3}  # stage 0 sends no gradient
    listed = str(found).replace("B1.", "I1.")
    with pytest.raises(InvalidInput, match=r"lists I1\.0, but stage 's1' recomputes: its backwards are whole"):
        verify(plan, Schedule.parse(listed.replace("I1.7", "I1.7 W1.0 W1.1 W1.2 W1.3 W1.4 W1.5 W1.6 W1.7")))
