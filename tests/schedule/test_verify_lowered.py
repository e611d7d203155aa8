"""On transports without tags, both ends list their messages in one order, and blocking transfers do not deadlock."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from builders import Part, chain, crossed, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan
from graphpipe.schedule import (
    Action,
    Compute,
    Evict,
    Fetch,
    Hold,
    LoweredSchedule,
    Receive,
    Reduce,
    ReduceTied,
    Return,
    Schedule,
    Send,
)
from graphpipe.schedule.deadlock import find_deadlock
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import SCHEDULERS, build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered


def _meetings(plan: Plan, device: int, listed: Sequence[Action]) -> list[Action]:
    """Return a device's actions. What it sends to a neighbour or asks back has the name that it has there."""
    found: list[Action] = []
    for action in listed:
        away = isinstance(action, Evict | Fetch) and plan.stages[action.stage].neighbour(device) is not None
        if isinstance(action, Evict) and away:
            found.append(Hold(action.stage, action.micro_batch, device))
        elif isinstance(action, Fetch) and away:
            found.append(Return(action.stage, action.micro_batch, device))
        else:
            found.append(action)
    return found


def run_streams(plan: Plan, lowered: LoweredSchedule) -> None:
    """Simulate NCCL: one thread per device posts actions to a stream per pair of devices and per set of replicas.

    A stream does its actions in order. A message or sum ends when all its devices have reached it. Only tasks wait for
    the messages they receive, and sums for the tasks before them.
    """
    streams: dict[tuple[frozenset[int], int], deque[Action]] = defaultdict(deque)
    posted = [deque(_meetings(plan, device, listed)) for device, listed in enumerate(lowered.devices)]
    arrived: set[object] = set()

    def members(action: Action) -> frozenset[int]:
        if isinstance(action, Send | Receive):
            return frozenset({action.transfer.source_device, action.transfer.target_device})
        if isinstance(action, Hold | Return):
            neighbour = plan.stages[action.stage].neighbour(action.source_device)
            assert neighbour is not None
            return frozenset({neighbour, action.source_device})
        if isinstance(action, Evict | Fetch):
            return frozenset()
        if isinstance(action, Reduce):
            return frozenset(plan.stages[action.stage].devices)
        assert isinstance(action, ReduceTied)
        return frozenset(plan.tied_gradients[action.tied_gradients].devices)

    def meeting(action: Action) -> object:
        return action.transfer if isinstance(action, Send | Receive) else action

    def ready(device: int, action: Action) -> bool:
        expected = [
            it.transfer
            for it in lowered.devices[device]
            if isinstance(it, Receive) and isinstance(action, Compute) and it.transfer.target_task == action.task
        ]
        return all(it.source_device == device or it in arrived for it in expected)

    def post() -> bool:
        moved = False
        for device, program in enumerate(posted):
            while program and (not isinstance(program[0], Compute) or ready(device, program[0])):
                action = program.popleft()
                moved = True
                if not isinstance(action, Compute) and len(members(action)) > 1:
                    streams[members(action), device].append(action)
        return moved

    def match() -> bool:
        moved = False
        for (group, device), queue in [*streams.items()]:
            while queue and device == min(group):
                if not all(streams[group, other] for other in group):
                    break
                heads = [streams[group, other][0] for other in group]
                assert len({meeting(head) for head in heads}) == 1, f"a pair takes {heads} for the same message"
                assert sum(isinstance(head, Send) for head in heads) in (0, 1)
                for other in group:
                    streams[group, other].popleft()
                arrived.add(meeting(heads[0]))
                moved = True
        return moved

    while post() | match():
        pass
    assert not any(posted), "a device waits forever"
    assert not any(streams.values()), "a stream waits forever"


@st.composite
def lowered_plans(draw: st.DrawFn) -> tuple[Plan, Schedule, LoweredSchedule]:
    """Draw any stage graph, micro-batches, degrees, devices and schedule, with parameters that stages share."""
    plan = draw(plans(schedules=("1f1b", "interleaved", "kfkb", "gpipe", "zb-h1", "zb-auto")))
    if plan.schedule.startswith("zb"):
        plan = with_room(plan)
    if len(plan.stages) > 1 and draw(st.booleans()):
        for number in range(draw(st.integers(1, 2))):
            stages = draw(st.permutations(range(len(plan.stages))))[: draw(st.integers(2, 3))]
            plan = share(plan, sorted(stages), 4.0, f"tied{number}")
    found = build_schedule(plan)
    return plan, found, lower(plan, found)


@settings(max_examples=120, deadline=None)
@given(lowered_plans())
def test_every_schedule_is_valid_on_a_transport_without_tags(
    found: tuple[Plan, Schedule, LoweredSchedule],
):
    plan, its_schedule, lowered = found
    verify_lowered(plan, its_schedule, lowered)
    run_streams(plan, lowered)
    assert not find_deadlock(plan, lowered, messages_wait=False)


@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(1, 23))
def test_evaluation_does_not_deadlock_on_a_transport_without_tags(plan: Plan, size: int):
    lowered = lower(plan, build_schedule(plan), batch_size=size, forward_only=True)
    assert not find_deadlock(plan, lowered)
    run_streams(plan, lowered)


def test_all_schedules_are_drawn():
    assert {*SCHEDULERS} == {"1f1b", "interleaved", "kfkb", "gpipe", "zb-h1", "zb-auto", "forward-only"}


def two_way() -> tuple[Plan, Schedule, LoweredSchedule]:
    """Return a chain of three stages, the middle one with two replicas, with messages both ways between two devices."""
    parts = [Part(micro_batch=2), Part(micro_batch=4, degree=2, parameter_bytes=1.0), Part(micro_batch=2)]
    plan = make_plan(parts, chain(3, 1.0))
    found = build_schedule(plan)
    return plan, found, lower(plan, found)


Change = Callable[[list[Action]], list[Action]]


def changed(lowered: LoweredSchedule, device: int, change: Change) -> LoweredSchedule:
    """Return the lowered schedule with another list for one device."""
    devices = [*lowered.devices]
    devices[device] = tuple(change([*devices[device]]))
    return replace(lowered, devices=tuple(devices))


def position(listed: list[Action], kind: type, nth: int = 0) -> int:
    return [place for place, action in enumerate(listed) if isinstance(action, kind)][nth]


def without(kind: type) -> Change:
    return lambda listed: [action for place, action in enumerate(listed) if place != position(listed, kind)]


def moved(kind: type, nth: int, by: int) -> Change:
    def change(listed: list[Action]) -> list[Action]:
        place = position(listed, kind, nth)
        action = listed.pop(place)
        listed.insert(place + by, action)
        return listed

    return change


def swapped(kind: type) -> Change:
    def change(listed: list[Action]) -> list[Action]:
        one, other = position(listed, kind, 0), position(listed, kind, 1)
        listed[one], listed[other] = listed[other], listed[one]
        return listed

    return change


def to_the_end(kind: type) -> Change:
    return lambda listed: [
        *(it for it in listed if not isinstance(it, kind)),
        *(i for i in listed if isinstance(i, kind)),
    ]


def to_the_front(kind: type) -> Change:
    return lambda listed: [
        *(i for i in listed if isinstance(i, kind)),
        *(it for it in listed if not isinstance(it, kind)),
    ]


@pytest.mark.parametrize(
    ("device", "change", "message"),
    [
        (0, without(Compute), "does other tasks than its schedule lists"),
        (0, without(Send), "Send: missing or too many"),
        (1, without(Receive), "Receive: missing or too many"),
        (
            0,
            lambda listed: [*listed, listed[position(listed, Send)]],
            "does not send the result of F0.0 right after it",
        ),
        (1, lambda listed: [listed[position(listed, Receive)], *listed], "a Receive is listed twice"),
        (1, to_the_end(Receive), "after that task"),
        (1, to_the_front(Receive), "list their messages in different orders"),
        (1, without(Reduce), "sums"),
        (1, to_the_front(Reduce), r"does B1\.\d after Reduce"),
    ],
)
def test_the_verifier_finds_an_injected_fault(device: int, change: Change, message: str):
    plan, its_schedule, lowered = two_way()
    verify_lowered(plan, its_schedule, lowered)
    with pytest.raises(AssertionError, match=message):
        verify_lowered(plan, its_schedule, changed(lowered, device, change))


def test_lists_that_agree_for_every_pair_of_devices_can_still_deadlock_in_a_ring():
    """Each of three devices first sends to the next. Every pair agrees, but with one queue per device they deadlock."""
    parts = [Part(), Part(), Part(forward=0.1)]
    plan = make_plan(parts, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)], batch_size=1)
    found = lower(plan, build_schedule(plan))
    forward = [it.transfer for _, it in found.order if isinstance(it, Send) and it.transfer.direction == "forward"]
    by_pair = {(it.source_device, it.target_device): it for it in forward}
    first, second, third = by_pair[0, 1], by_pair[0, 2], by_pair[1, 2]
    ring = (
        (Send(first), Send(second)),
        (Send(third), Receive(first)),
        (Receive(second), Receive(third)),
    )
    order = tuple((device, action) for device, listed in enumerate(ring) for action in listed)
    assert [*find_deadlock(plan, replace(found, devices=ring, order=order))] == [0, 1, 2]
    assert not find_deadlock(plan, replace(found, devices=ring, order=order), messages_wait=False)
    run_streams(plan, replace(found, devices=ring, order=order))


def test_sums_inside_the_last_backward_can_deadlock_where_sums_after_it_do_not():
    """Before its last backward, a replica's device does one of an earlier stage, which waits for the other replica."""
    plan, text = crossed()
    lowered = lower(plan, Schedule.parse(text))
    assert not find_deadlock(plan, lowered)
    stuck = find_deadlock(plan, lowered, inside={1})
    assert stuck, "replica 0 cannot end its backward, for which replica 1 waits"
    assert find_deadlock(plan, lowered, inside={1}, messages_wait=False), "messages need not block for this"
    assert not find_deadlock(plan, lowered, messages_wait=False)
