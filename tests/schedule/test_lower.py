"""Lowered schedules: every sample arrives once, from its owner, in an order that cannot deadlock."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import Part, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.schedule import Action, Compute, LoweredSchedule, Receive, Reduce, Schedule, Send, StageTask, Transfer
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule


def transfers(lowered: LoweredSchedule) -> list[Transfer]:
    return [action.transfer for _, action in lowered.order if isinstance(action, Send)]


def check_samples(plan: Plan, lowered: LoweredSchedule, directions: tuple[str, ...]) -> None:
    # For each edge, direction and consuming task on a device: exactly its samples, from tasks that hold them.
    size, received = lowered.batch_size, Counter[tuple[int, str, int, StageTask, int]]()
    for transfer in transfers(lowered):
        assert len(transfer.samples) > 0
        for end in ("source", "target"):
            task, device = getattr(transfer, f"{end}_task"), getattr(transfer, f"{end}_device")
            assert transfer.samples & held(plan, task, device, size) == transfer.samples
        for sample in range(transfer.samples.start, transfer.samples.stop):
            key = (transfer.edge, transfer.direction, transfer.target_device, transfer.target_task, sample)
            received[key] += 1
    assert set(received.values()) <= {1}
    edges = {"forward": len(plan.edges), "backward": len(plan.gradient_edges)}
    assert len(received) == size * sum(edges[direction] for direction in directions)
    assert {key[1] for key in received} <= set(directions)


def held(plan: Plan, task: StageTask, device: int, size: int) -> SampleRange:
    stage = plan.stages[task.stage]
    return sample_range(size, stage.micro_batch, stage.degree, task.micro_batch, stage.devices.index(device))


def replay_with_rendezvous(lowered: LoweredSchedule) -> None:
    # A device does one action at a time. An action starts when all devices that take part in it have reached it.
    members: dict[int, set[int]] = {}
    for device, action in lowered.order:
        if isinstance(action, Reduce):
            members.setdefault(action.stage, set()).add(device)
    left = [list(listed)[::-1] for listed in lowered.devices]
    moved = True
    while moved:
        moved = False
        for device, mine in enumerate(left):
            while mine and (needed := partners(device, mine[-1], members)) is not None:
                if any(not left[other] or left[other][-1] != action for other, action in needed.items()):
                    break
                for other in needed:
                    left[other].pop()
                moved = True
    assert not any(left), "the devices wait for each other forever"


def partners(device: int, action: Action, members: dict[int, set[int]]) -> dict[int, Action] | None:
    # Returns the action that each device must do at the same time. None: the other side starts this action.
    if isinstance(action, Send) and action.transfer.target_device != device:
        return {device: action, action.transfer.target_device: Receive(action.transfer)}
    if isinstance(action, Receive) and action.transfer.source_device != device:
        return None
    if isinstance(action, Reduce):
        return dict.fromkeys(members[action.stage], action)
    return {device: action}


def check_order(plan: Plan, lowered: LoweredSchedule) -> None:
    # A device's list is its part of the total order. Each send is followed by its receive. Inputs precede their task.
    for device, listed in enumerate(lowered.devices):
        assert listed == tuple(action for where, action in lowered.order if where == device)
    done: set[tuple[int, StageTask]] = set()
    arrived = Counter[tuple[int, StageTask]]()
    needed = Counter((transfer.target_device, transfer.target_task) for transfer in transfers(lowered))
    for (device, action), (other, following) in pairwise([*lowered.order, (-1, Reduce(-1))]):
        if isinstance(action, Send):
            transfer = action.transfer
            assert (transfer.source_device, transfer.source_task) in done
            assert (other, following) == (transfer.target_device, Receive(transfer))
            arrived[transfer.target_device, transfer.target_task] += 1
        elif isinstance(action, Compute):
            assert arrived[device, action.task] == needed[device, action.task]
            done.add((device, action.task))
        elif isinstance(action, Reduce):
            last = plan.batch_size // plan.stages[action.stage].micro_batch - 1
            assert all((d, StageTask("B", action.stage, last)) in done for d in plan.stages[action.stage].devices)


@settings(max_examples=30, deadline=None)
@given(plans())
def test_training_moves_every_sample_once_and_never_deadlocks(plan: Plan):
    lowered = lower(plan, build_schedule(plan))
    check_samples(plan, lowered, ("forward", "backward"))
    check_order(plan, lowered)
    replay_with_rendezvous(lowered)
    for device, tasks in enumerate(build_schedule(plan).devices):
        assert tasks == tuple(action.task for action in lowered.devices[device] if isinstance(action, Compute))
    reduced = Counter((d, action.stage) for d, action in lowered.order if isinstance(action, Reduce))
    assert reduced == {(d, s): 1 for s, it in enumerate(plan.stages) if it.degree > 1 for d in it.devices}


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(1, 23))
def test_evaluation_takes_any_batch_size(plan: Plan, size: int):
    lowered = lower(plan, build_schedule(plan), batch_size=size, forward_only=True)
    check_samples(plan, lowered, ("forward",))
    check_order(plan, lowered)
    replay_with_rendezvous(lowered)
    for number, stage in enumerate(plan.stages):
        samples = [
            sample
            for device, action in lowered.order
            if isinstance(action, Compute) and action.task.stage == number
            for sample in range(*_ends(held(plan, action.task, device, size)))
        ]
        assert sorted(samples) == list(range(size)), stage


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(1, 40))
def test_in_an_evaluation_no_stage_is_further_ahead_of_its_consumers_than_under_1f1b(plan: Plan, size: int):
    """There was no back-pressure: a stage computed all micro-batches, and kept all outputs until the end."""
    lowered = lower(plan, build_schedule(plan), batch_size=size, forward_only=True)
    sizes = [stage.micro_batch for stage in plan.stages]
    ahead = in_flight_samples(size, sizes, [1] * len(sizes), plan.successors)
    done: set[tuple[int, StageTask]] = set()
    kept: dict[int, list[Transfer]] = {}
    for device, action in lowered.order:
        if isinstance(action, Send):
            kept.setdefault(device, []).append(action.transfer)
        if not isinstance(action, Compute):
            continue
        for transfer in lowered.awaited.get((device, action.task), ()):
            assert (transfer.target_device, transfer.target_task) in done, "it may wait forever"
            kept[device].remove(transfer)
        done.add((device, action.task))
        stage = action.task.stage
        end = min((action.task.micro_batch + 1) * sizes[stage], size)
        for transfer in kept.get(device, ()):
            if transfer.source_task.stage == stage:  # it ends after the samples that were given back
                taken = (transfer.target_task.micro_batch + 1) * sizes[transfer.target_task.stage]
                assert taken >= end - ahead[stage], f"{transfer} is kept beside {action.task}"


def _ends(samples: SampleRange) -> tuple[int, int]:
    assert len(samples) > 0
    return samples.start, samples.stop


@settings(max_examples=15, deadline=None)
@given(plans())
def test_lowering_is_deterministic(plan: Plan):
    assert lower(plan, build_schedule(plan)) == lower(plan, build_schedule(plan))


def test_mixed_micro_batches_and_degrees_by_hand():
    # Stage 0 has micro-batches of 2 on one device. Stage 1 has one micro-batch of 4, split over devices 1 and 2.
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=4, degree=2)], [(0, 1, 1.0)], batch_size=4)
    lowered = lower(plan, build_schedule(plan))
    first = Transfer(0, "forward", 0, 1, SampleRange(0, 2), StageTask("F", 0, 0), StageTask("F", 1, 0))
    second = Transfer(0, "forward", 0, 2, SampleRange(2, 4), StageTask("F", 0, 1), StageTask("F", 1, 0))
    back = Transfer(0, "backward", 2, 0, SampleRange(2, 4), StageTask("B", 1, 0), StageTask("B", 0, 1))
    assert lowered.devices[2] == (
        Receive(second),
        Compute(StageTask("F", 1, 0)),
        Compute(StageTask("B", 1, 0)),
        Send(back),
        Reduce(1),
    )
    assert lowered.devices[0][:4] == (
        Compute(StageTask("F", 0, 0)),
        Send(first),
        Compute(StageTask("F", 0, 1)),
        Send(second),
    )


def test_gradients_go_back_only_along_the_edges_that_carry_them():
    plan = make_plan([Part(), Part(), Part()], [(0, 2, 1.0), (1, 2, 1.0)], batch_size=2)
    lowered = lower(plan, build_schedule(plan), gradient_edges=frozenset({1}))
    back = [transfer.edge for transfer in transfers(lowered) if transfer.direction == "backward"]
    assert back == [1, 1]


def test_training_with_another_batch_size_is_refused():
    plan = make_plan([Part()], batch_size=8)
    found = build_schedule(plan)
    for size in (0, 6, 9, 16):
        with pytest.raises(InvalidInput, match=f"batch_size: is {size}, the plan was made for 8"):
            lower(plan, found, batch_size=size)
    with pytest.raises(InvalidInput, match="batch_size: is 0, the plan was made for 8"):
        lower(plan, found, batch_size=0, forward_only=True)
    assert lower(plan, found, batch_size=8) == lower(plan, found)
    assert lower(plan, found, batch_size=1, forward_only=True).batch_size == 1


def test_a_plan_that_does_not_train_has_forwards_only() -> None:
    plan = replace(make_plan([Part(), Part()], [(0, 1, 1.0)], batch_size=2), trains=False, schedule="forward-only")
    lowered = lower(plan, build_schedule(plan))
    assert {action.task.kind for _, action in lowered.order if isinstance(action, Compute)} == {"F"}
    assert {transfer.direction for transfer in transfers(lowered)} == {"forward"}


def test_the_order_of_a_segment_by_hand() -> None:
    """At equal logical times, messages come first, then updates, then tasks."""
    parts = [Part(parameter_bytes=1.0), Part(micro_batch=2, degree=2, parameter_bytes=1.0)]
    plan = share(make_plan(parts, [(0, 1, 1.0)], batch_size=2), [0, 1], 4.0)
    found = Schedule.parse(
        "schedule hand\n0: F0.0 F0.1 B0.0 B0.1 U0.0 F0.2 F0.3 B0.2 B0.3 U0.1\n"
        + "".join(f"{device}: F1.0 B1.0 U1.0 F1.1 B1.1 U1.1\n" for device in (1, 2))
    )
    words = [
        f"{device} {action.task if isinstance(action, Compute) else type(action).__name__}"
        for device, action in lower(plan, found).order
    ]
    # A forward of a sample takes a tick, a backward two. Device 0 does F0.0 at 0, F0.1 at 1, B0.0 at 4 and B0.1 at 6.
    first = [
        *("0 F0.0", "0 Send", "1 Receive", "0 F0.1", "1 F1.0"),  # until 1
        *("0 Send", "2 Receive", "1 B1.0", "2 F1.0", "2 B1.0"),  # until 3
        *("1 Send", "0 Receive", "0 B0.0", "2 Send", "0 Receive", "1 Reduce", "2 Reduce", "0 B0.1"),  # until 6
        *("0 ReduceTied", "1 ReduceTied", "2 ReduceTied", "0 U0.0", "1 U1.0", "2 U1.0"),  # at 8
    ]
    assert words[: len(first)] == first
    assert [word.replace("0.2", "0.0").replace("0.3", "0.1") for word in words[len(first) :]][:2] == first[:2]
    assert len(words) == 2 * len(first)


def test_evaluation_ignores_the_updates_of_a_segment() -> None:
    """They were lowered too. A stage of a whole batch then has more samples than a mini-batch, so that the evaluation
    after the last step divided by zero."""
    plan = make_plan([Part(), Part(micro_batch=2)], [(0, 1, 1.0)], batch_size=2)
    segment = Schedule.parse("schedule hand\n0: F0.0 F0.1 B0.0 B0.1 U0.0\n1: F1.0 B1.0 U1.0\n")
    wider = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], micro_batch=5)))
    lowered = lower(wider, segment, batch_size=5, forward_only=True)
    assert {action.task.kind for _, action in lowered.order if isinstance(action, Compute)} == {"F"}
    check_samples(wider, lowered, ("forward",))
