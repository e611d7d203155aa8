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
from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule import (
    Action,
    Compute,
    Fetch,
    LoweredSchedule,
    Offload,
    Receive,
    ReceiveOffloaded,
    Reduce,
    ReduceTied,
    Schedule,
    Send,
    SendOffloaded,
)
from graphpipe.schedule.deadlock import find_deadlock
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedule import StageTask
from graphpipe.schedule.schedulers.registry import SCHEDULERS, build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.verify_lowered import verify_lowered


def _meetings(plan: Plan, device: int, listed: Sequence[Action]) -> list[Action]:
    """Return a device's actions. What it sends to a neighbour or asks back has the name that it has there."""
    found: list[Action] = []
    for action in listed:
        away = isinstance(action, Offload | Fetch) and plan.stages[action.stage].neighbour(device) is not None
        if isinstance(action, Offload) and away:
            found.append(ReceiveOffloaded(action.stage, action.micro_batch, device))
        elif isinstance(action, Fetch) and away:
            found.append(SendOffloaded(action.stage, action.micro_batch, device))
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
        if isinstance(action, ReceiveOffloaded | SendOffloaded):
            neighbour = plan.stages[action.stage].neighbour(action.source_device)
            assert neighbour is not None
            return frozenset({neighbour, action.source_device})
        if isinstance(action, Offload | Fetch):
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


@settings(max_examples=60, deadline=None)
@given(lowered_plans())
def test_every_schedule_is_valid_on_a_transport_without_tags(
    found: tuple[Plan, Schedule, LoweredSchedule],
):
    plan, its_schedule, lowered = found
    verify_lowered(plan, its_schedule, lowered)
    run_streams(plan, lowered)
    assert not find_deadlock(plan, lowered, messages_wait=False)


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(1, 23))
def test_evaluation_does_not_deadlock_on_a_transport_without_tags(plan: Plan, size: int):
    lowered = lower(plan, build_schedule(plan), batch_size=size, forward_only=True)
    assert not find_deadlock(plan, lowered)
    run_streams(plan, lowered)


@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 3), (2, 4), (3, 7), (4, 9)])
def test_devices_in_a_v_are_valid_on_a_transport_without_tags(devices: int, micro_batches: int):
    folded = [Part(devices=(min(at, 2 * devices - 1 - at),), in_flight=micro_batches) for at in range(2 * devices)]
    plan = make_plan(folded, chain(2 * devices, 1.0), batch_size=micro_batches, schedule="dualpipe-v")
    found = build_schedule(plan)
    lowered = lower(plan, found)
    verify_lowered(plan, found, lowered)
    run_streams(plan, lowered)
    assert not find_deadlock(plan, lowered, messages_wait=False)


def test_all_schedules_are_drawn():
    drawn = {"1f1b", "interleaved", "kfkb", "gpipe", "zb-h1", "zb-auto", "forward-only"}
    assert {*SCHEDULERS} == drawn | {"dualpipe-v"}


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


def without(kind: type, nth: int = 0) -> Change:
    return lambda listed: [action for place, action in enumerate(listed) if place != position(listed, kind, nth)]


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
        (0, without(Compute, -1), "does other tasks than its schedule lists"),
        (0, without(Send), "Send: missing or too many"),
        (0, moved(Send, 0, 1), "does not send the result of F0.0 right after it"),
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


def segment_of_two() -> tuple[Plan, Schedule, LoweredSchedule]:
    """Return a segment of two mini-batches of a stage with two replicas, which updates its weights twice."""
    plan = make_plan([Part(micro_batch=2, degree=2, parameter_bytes=1.0)], batch_size=4)
    found = build_segment(plan, 2)
    return plan, found, lower(plan, found)


def before(kind: type, nth: int, task: str) -> Change:
    """Return a change that moves an action to right before a task."""

    def change(listed: list[Action]) -> list[Action]:
        action = listed.pop(position(listed, kind, nth))
        listed.insert(listed.index(Compute(StageTask.parse(task))), action)
        return listed

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (before(Reduce, 0, "B0.1"), r"does B0\.1 after Reduce\(stage=0, mini_batch=0\)"),
        (before(Reduce, 1, "B0.3"), r"does B0\.3 after Reduce\(stage=0, mini_batch=1\)"),
        (before(Reduce, 0, "F0.2"), r"sums gradients .* after the update that needs them, U0\.0"),
        (before(Reduce, 0, "U0.1"), "sums gradients|of the next mini-batch before"),
        (without(Reduce), "sums .*, not"),
        (lambda listed: [*listed, listed[position(listed, Reduce)]], "sums .*, not"),
    ],
)
def test_gradients_are_summed_once_per_mini_batch_before_its_update(change: Change, message: str) -> None:
    plan, found, lowered = segment_of_two()
    tasks = "F0.0 B0.0 F0.1 B0.1 U0.0 F0.2 B0.2 F0.3 B0.3 U0.1"
    assert str(found).splitlines()[1] == f"0: {tasks}"
    verify_lowered(plan, found, lowered)
    with pytest.raises(AssertionError, match=f"device 0 {message}"):
        verify_lowered(plan, found, changed(lowered, 0, change))


def test_a_sum_after_a_backward_of_the_next_mini_batch_is_refused_where_updates_wait() -> None:
    plan, _, _ = segment_of_two()
    late = Schedule.parse(
        "schedule hand\n" + "".join(f"{at}: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3\n" for at in (0, 1))
    )
    updates = tuple((*tasks, StageTask("U", 0, 0), StageTask("U", 0, 1)) for tasks in late.devices)
    found = replace(late, devices=updates)
    lowered = lower(plan, found)
    for at in (0, 1):
        lowered = changed(lowered, at, before(Reduce, 0, "F0.3"))
    with pytest.raises(AssertionError, match=r"device 0 does B0\.2 of the next mini-batch before Reduce"):
        verify_lowered(plan, found, lowered)


def test_a_message_at_a_device_that_is_none_of_its_ends_is_refused() -> None:
    plan, found, lowered = two_way()
    message = lowered.devices[1][position([*lowered.devices[1]], Receive)]
    elsewhere = changed(lowered, 1, without(Receive))
    for device in (0, 2):
        with pytest.raises(AssertionError, match=f"device {device} lists a Receive of another: "):
            verify_lowered(plan, found, changed(elsewhere, device, lambda listed: [message, *listed]))
    assert isinstance(message, Receive)
    unknown = Receive(replace(message.transfer, samples=SampleRange(90, 91)))
    with pytest.raises(AssertionError, match=r"Receive: missing or too many: \[.*start=90, stop=91"):
        verify_lowered(plan, found, changed(lowered, 1, lambda listed: [unknown, *listed]))


def test_a_schedule_lowered_for_another_batch_is_refused() -> None:
    plan, found, lowered = two_way()
    for size in (4, 16):
        with pytest.raises(AssertionError, match=f"lowered for {size} samples, not 8"):
            verify_lowered(plan, found, replace(lowered, batch_size=size))


@pytest.mark.parametrize(
    ("change", "copies"),
    [
        (lambda listed: [it for it in listed if not isinstance(it, Offload | Fetch)], r"\[\]"),
        (without(Fetch), r"\[\(1, Offload.*\)\]"),
        (before(Fetch, 0, "B0.0"), r"\[\(1, Offload.*\), \(3, Fetch.*\)\]"),
        (before(Offload, 0, "F0.2"), r"\[\(2, Fetch.*\), \(2, Offload.*\)\]"),
    ],
)
def test_what_is_offloaded_leaves_after_its_forward_and_comes_back_a_task_before_its_backward(
    change: Change, copies: str
) -> None:
    plan = make_plan([Part(offloads=True, saved_bytes=1.0)], batch_size=3, schedule="gpipe")
    found = Schedule.parse("schedule hand\n0: F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\n")
    lowered = lower(plan, found)
    verify_lowered(plan, found, lowered)
    with pytest.raises(AssertionError, match=f"device 0 copies {copies} of F0.0, not "):
        verify_lowered(plan, found, changed(lowered, 0, change))


def test_what_a_message_leaves_out_is_in_an_earlier_output_or_a_later_gradient() -> None:
    # Stages 1 and 2 read the same value on device 1, and the gradient of 2 goes back in the sum of 1.
    parts = [Part(devices=(0,)), Part(devices=(1,)), Part(devices=(1,))]
    empty = make_plan(parts, [(0, 1, 0.0), (0, 2, 0.0), (1, 2, 1.0)], batch_size=1)
    verify_lowered(empty, build_schedule(empty), lower(empty, build_schedule(empty)))
    plan = make_plan(parts, [(0, 1, 5.0), (0, 2, 5.0), (1, 2, 1.0)], batch_size=1)
    found = build_schedule(plan)
    lowered = lower(plan, found)
    verify_lowered(plan, found, lowered)
    with pytest.raises(AssertionError, match=r"device 0 sends .* and edge 0 in the wrong order"):
        verify_lowered(plan, found, changed(lowered, 0, swapped(Send)))
    # Both gradients may leave after the backward of stage 1, but the one with the sum is the later one.
    back = [it.transfer for it in lowered.devices[1] if isinstance(it, Send) and it.transfer.target_device == 0]
    assert [(it.edge, it.without) for it in back] == [(1, (0,)), (0, ())]

    def only_the_first(listed: list[Action]) -> list[Action]:
        return [it for it in listed if it != Send(back[1])]

    with pytest.raises(AssertionError, match=r"device 1 leaves out values of .*, but does not send edge 0"):
        verify_lowered(plan, found, changed(lowered, 1, only_the_first))


def on_two_devices(stages: int, edges: list[tuple[int, int, float]]) -> Plan:
    """Return a plan with stage 0 on device 0 and the others on device 1."""
    return make_plan([Part(devices=(0,)), *[Part(devices=(1,))] * (stages - 1)], edges)


@pytest.mark.parametrize(
    ("plan", "outputs", "gradients"),
    [
        # Stage 2 reads a part of what stage 1 reads, so it gets its own message.
        (on_two_devices(3, [(0, 1, 5.0), (0, 2, 4.0), (1, 2, 1.0)]), {}, {}),
        # The gradient of stage 1 depends on that of stage 3, through stage 2: one message has the sum of both.
        (on_two_devices(4, [(0, 1, 5.0), (0, 3, 5.0), (1, 2, 1.0), (2, 3, 1.0)]), {1: (0,)}, {1: (0,)}),
    ],
)
def test_the_verifier_derives_what_messages_leave_out_as_the_plan_does(
    plan: Plan, outputs: dict[int, tuple[int, ...]], gradients: dict[int, tuple[int, ...]]
) -> None:
    assert (plan.joint_edges.outputs, plan.joint_edges.gradients) == (outputs, gradients)
    found = build_schedule(plan)
    verify_lowered(plan, found, lower(plan, found))


def test_an_edge_from_another_stage_does_not_bring_a_value_in_whichever_order_edges_are_listed() -> None:
    plan = make_plan([Part(devices=(at,)) for at in (0, 2, 1, 1)], [(0, 2, 5.0), (0, 3, 5.0), (1, 3, 5.0)])
    by_ends = {(edge.source, edge.target): edge for edge in plan.edges}
    plan = replace(plan, edges=tuple(by_ends[ends] for ends in ((1, 3), (0, 2), (0, 3))))
    assert plan.joint_edges.outputs == {2: (1,)}
    found = build_schedule(plan)
    verify_lowered(plan, found, lower(plan, found))


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


def test_sums_in_different_orders_deadlock_where_they_are_not_inside_the_last_backward():
    parts = [Part(devices=(0, 1), degree=2, micro_batch=2, parameter_bytes=1.0) for _ in range(2)]
    plan = make_plan(parts, [(0, 1, 1.0)], batch_size=2)
    found = lower(plan, build_schedule(plan))
    assert not find_deadlock(plan, found)
    other: dict[Action, Action] = {Reduce(0): Reduce(1), Reduce(1): Reduce(0)}
    exchanged = changed(found, 1, lambda listed: [other.get(action, action) for action in listed])
    stuck = find_deadlock(plan, exchanged)
    assert {*stuck} == {0, 1}
    assert {*stuck.values()} == {Reduce(0), Reduce(1)}
    assert not find_deadlock(plan, exchanged, inside={0, 1})


def test_sums_inside_the_last_backward_can_deadlock_where_sums_after_it_do_not():
    """Before its last backward, a replica's device does one of an earlier stage, which waits for the other replica."""
    plan, text = crossed()
    lowered = lower(plan, Schedule.parse(text))
    assert not find_deadlock(plan, lowered)
    stuck = find_deadlock(plan, lowered, inside={1})
    assert stuck, "replica 0 cannot end its backward, for which replica 1 waits"
    assert find_deadlock(plan, lowered, inside={1}, messages_wait=False), "messages need not block for this"
    assert not find_deadlock(plan, lowered, messages_wait=False)
