"""Stages whose replicas several devices share: who sends to whom, and in step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_replicas import chain, layer, problem, shards

from graphpipe.errors import InvalidInput
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plans import Plan
from graphpipe.plans.sharding import sender
from graphpipe.schedule import Compute, Send
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify import verify
from graphpipe.schedule.verify_lowered import verify_lowered


def planned(*stages: tuple[tuple[int, ...], int, int], batch_size: int = 4, schedule: str = "1f1b") -> Plan:
    """Return a plan of stages, given by their devices, how many of them share a replica, and the micro-batch."""
    names = "abcde"[: len(stages)]
    graph = chain(*(layer(name, shards()) for name in names))
    listed = tuple(
        HandStage(ops=(name,), devices=devices, tensor=ranks, micro_batch=size)
        for name, (devices, ranks, size) in zip(names, stages, strict=True)
    )
    found = problem(graph, 16, batch_size, per_node=16)
    return plan_by_hand(found, HandPlan(stages=listed, schedule=schedule))


def sent(plan: Plan) -> set[tuple[str, int, int]]:
    lowered = lower(plan, build_schedule(plan))
    transfers = [action.transfer for _, action in lowered.order if isinstance(action, Send)]
    return {(it.direction, it.source_device, it.target_device) for it in transfers}


def test_every_rank_takes_whole_values_from_one_rank() -> None:
    narrow_to_wide = planned(((0, 1), 2, 1), ((4, 5, 6, 7), 4, 1))
    forward = {("forward", 0, 4), ("forward", 1, 5), ("forward", 0, 6), ("forward", 1, 7)}
    assert sent(narrow_to_wide) == forward | {("backward", 4, 0), ("backward", 5, 1)}
    wide_to_one = planned(((4, 5, 6, 7), 4, 1), ((0,), 1, 1))
    back = {("backward", 0, device) for device in (4, 5, 6, 7)}
    assert sent(wide_to_one) == {("forward", 4, 0)} | back


def test_replicas_take_their_own_samples() -> None:
    plan = planned(((0, 1, 2, 3), 2, 2), ((4, 5), 2, 1))
    forward = {("forward", 0, 4), ("forward", 1, 5), ("forward", 2, 4), ("forward", 3, 5)}
    assert sent(plan) == forward | {("backward", target, source) for _, source, target in forward}
    lowered = lower(plan, build_schedule(plan))
    samples = {
        (it.source_device, it.samples.start)
        for _, action in lowered.order
        if isinstance(action, Send) and (it := action.transfer).direction == "forward"
    }
    assert samples == {(0, 0), (1, 0), (2, 1), (3, 1), (0, 2), (1, 2), (2, 3), (3, 3)}


def test_a_device_that_hosts_both_stages_takes_its_own_values() -> None:
    assert sent(planned(((0, 1), 2, 1), ((1, 0), 2, 1))) == {
        (way, device, device) for way in ("forward", "backward") for device in (0, 1)
    }
    assert [sender((4, 5), device, rank) for rank, device in enumerate((0, 4, 2, 3))] == [4, 4, 4, 5]


def test_the_devices_of_a_replica_do_the_same_tasks_in_step() -> None:
    plan = planned(((0, 1, 2, 3), 2, 2), ((4, 5), 2, 1))
    schedule = build_schedule(plan)
    assert schedule.devices[0] == schedule.devices[1]
    tasks = list(schedule.devices[4])
    tasks[0], tasks[1] = tasks[1], tasks[0]
    devices = (*schedule.devices[:4], tuple(tasks), *schedule.devices[5:])
    with pytest.raises(InvalidInput, match=r"F1\.0|'d4' and 'd5' share a replica"):
        verify(plan, replace(schedule, devices=devices))
    order = [(device, action) for device, action in lower(plan, schedule).order if isinstance(action, Compute)]
    for place, (device, action) in enumerate(order):
        if device in (0, 2, 4):
            assert order[place + 1] == (device + 1, action), "nothing comes between them"


def test_an_order_that_differs_between_ranks_is_refused() -> None:
    plan = planned(((0, 1), 2, 1), ((4, 5), 2, 1))
    schedule = build_schedule(plan)
    whole = replace(plan, stages=tuple(replace(stage, in_flight=4) for stage in plan.stages))
    eager = build_schedule(replace(whole, schedule="gpipe"))
    mixed = replace(schedule, devices=(*schedule.devices[:4], eager.devices[4], *schedule.devices[5:]))
    with pytest.raises(InvalidInput, match="'d4' and 'd5' share a replica of stage 's1', but their tasks differ"):
        verify(whole, mixed)


@st.composite
def layouts(draw: st.DrawFn) -> Plan:
    """Stages with 1, 2 or 4 devices per replica, some of which share their devices."""
    stages: list[tuple[tuple[int, ...], int, int]] = []
    free = 0
    for _ in range(draw(st.integers(1, 4))):
        ranks, size = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
        replicas = draw(st.sampled_from([count for count in (1, 2) if count <= size]))
        if free + ranks * replicas > 16 or (stages and draw(st.booleans())):
            devices, ranks, _ = draw(st.sampled_from(stages)) if stages else ((0,), 1, 1)
            size = max(size, len(devices) // ranks)
        else:
            devices, free = tuple(range(free, free + ranks * replicas)), free + ranks * replicas
        stages.append((devices, ranks, size))
    return planned(*stages, schedule=draw(st.sampled_from(["1f1b", "zb-h1"])))


@given(layouts())
@settings(max_examples=15)
def test_every_layout_is_lowered_soundly(plan: Plan) -> None:
    schedule = build_schedule(plan)
    verify_lowered(plan, schedule, lower(plan, schedule))
