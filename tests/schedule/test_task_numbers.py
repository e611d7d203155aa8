"""Numbers of tasks, and who waits for whom, by hand."""

from dataclasses import replace

import pytest
from builders import Part, make_plan, share

from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule.schedule import StageTask
from graphpipe.schedule.task_numbers import (
    Flow,
    Passage,
    TaskNumbers,
    channels_of,
    equal_devices,
    first_equal,
    update_waits,
)

PLAN = make_plan([Part(micro_batch=2), Part(micro_batch=4, degree=2), Part(micro_batch=4)], batch_size=4)
"""Backwards: stage 0 has 0 and 1, the replicas of stage 1 have 2 and 3, and stage 2 has 4."""


def task(text: str) -> StageTask:
    return StageTask.parse(text)


def test_backwards_come_first_then_forwards_weight_gradients_and_updates() -> None:
    numbers = TaskNumbers(PLAN, 4)
    assert (numbers.counts, numbers.firsts, numbers.third, numbers.updates) == ((2, 1, 1), (0, 2, 4, 5), 5, 1)
    listed = (("B0.1", 0), ("I0.1", 0), ("B1.0", 1), ("B1.0", 2), ("B2.0", 3), ("F0.0", 0), ("F1.0", 2), ("W2.0", 3))
    assert [numbers.number(task(text), device) for text, device in listed] == [1, 1, 2, 3, 4, 5, 8, 14]
    assert [numbers.number(task(f"U{stage}.0"), device) for stage, device in ((0, 0), (1, 1), (1, 2), (2, 3))] == [
        15,
        16,
        17,
        18,
    ]
    third = [2, 2, 2, 2, 4]
    assert numbers.samples == [*third, *third, *third, 0, 0, 0, 0]


def test_two_mini_batches_have_two_updates_of_each_replica() -> None:
    numbers = TaskNumbers(PLAN, 8)
    assert (numbers.counts, numbers.third, numbers.updates) == ((4, 2, 2), 10, 2)
    listed = (("U0.1", 0), ("U1.0", 1), ("U1.1", 2), ("U2.1", 3))
    assert [numbers.number(task(text), device) for text, device in listed] == [31, 32, 35, 37]
    assert len(numbers.samples) == 38


def test_every_task_has_its_own_number() -> None:
    numbers = TaskNumbers(PLAN, 12)
    found = [
        numbers.number(task(f"{kind}{at}.{index}"), device)
        for at, stage in enumerate(PLAN.stages)
        for device in stage.devices
        for kind, count in (*((kind, numbers.counts[at]) for kind in "BFW"), ("U", 3))
        for index in range(count)
    ]
    assert sorted(found) == list(range(len(numbers.samples)))


def test_long_mini_batches_flow_too() -> None:
    plan = make_plan([Part(), Part()], batch_size=300)
    assert len(list(TaskNumbers(plan, 300).flows(frozenset({0})))) == 600


def test_a_forward_takes_a_tick_per_sample_a_backward_two_and_a_half_one() -> None:
    numbers = TaskNumbers(PLAN, 4)
    listed = {numbers.number(task(text), 3): task(text) for text in ("F2.0", "I2.0", "W2.0", "U2.0")}
    ticks = numbers.ticks(listed)
    assert {number: ticks[number] for number in listed} == {9: 4, 4: 4, 14: 4, 18: 0}
    assert sum(ticks) == 12
    assert numbers.ticks({4: task("B2.0")})[4] == 8


def test_a_replica_without_a_sample_of_a_short_micro_batch_is_left_out() -> None:
    numbers = TaskNumbers(PLAN, 5)
    assert numbers.pieces(1) == [
        (SampleRange(0, 2), 3),
        (SampleRange(2, 4), 5),
        (SampleRange(4, 5), 6),
    ]


def test_samples_flow_from_their_owner_and_gradients_go_back() -> None:
    numbers = TaskNumbers(PLAN, 4)
    first, second = SampleRange(0, 2), SampleRange(2, 4)
    forward = [Flow(0, False, 5, 7, first), Flow(0, False, 6, 8, second)]
    assert list(numbers.flows(frozenset())) == [*forward, Flow(1, False, 7, 9, first), Flow(1, False, 8, 9, second)]
    assert list(numbers.flows(frozenset({0}))) == [
        *(forward[0], Flow(0, True, 2, 0, first), forward[1], Flow(0, True, 3, 1, second)),
        *(Flow(1, False, 7, 9, first), Flow(1, False, 8, 9, second)),
    ]
    assert sum(flow.backward for flow in numbers.flows(None)) == 4


@pytest.mark.parametrize(("tied", "waits"), [((), {0: {0}, 1: {1}}), ((0, 1), {0: {0, 1}, 1: {0, 1}})])
def test_an_update_waits_for_the_last_weight_gradients_of_its_mini_batch(
    tied: tuple[int, ...], waits: dict[int, set[int]]
) -> None:
    plan = make_plan([Part(), Part(micro_batch=2, degree=2)], batch_size=2)
    plan = share(plan, tied, 4.0) if tied else plan
    numbers = TaskNumbers(plan, 4)
    texts = [(f"{kind}0.{at}", (0,)) for kind in "FIW" for at in range(4)]
    texts += [(f"{kind}1.{at}", (1, 2)) for kind in "FB" for at in range(2)]
    texts += [(f"U{stage}.{at}", devices) for stage, devices in ((0, (0,)), (1, (1, 2))) for at in range(2)]
    tasks = {numbers.number(task(text), device): task(text) for text, devices in texts for device in devices}
    lasts = {(0, 0): [("W0.1", 0)], (0, 1): [("W0.3", 0)]}
    lasts |= {(1, at): [(f"B1.{at}", 1), (f"B1.{at}", 2)] for at in range(2)}
    expected = {
        (numbers.number(task(text), device), numbers.number(task(f"U{stage}.{at}"), own))
        for stage, devices in ((0, (0,)), (1, (1, 2)))
        for own in devices
        for at in range(2)
        for other in waits[stage]
        for text, device in lasts[other, at]
    }
    found = list(update_waits(plan, tasks))
    assert sorted(found) == sorted(expected)


def test_what_passes_between_devices() -> None:
    assert channels_of(PLAN, 4) == {
        (0, 1): [Passage(0, False, 0)],
        (1, 0): [Passage(0, True, 0)],
        (0, 2): [Passage(0, False, 1)],
        (2, 0): [Passage(0, True, 1)],
        (1, 3): [Passage(1, False, 0)],
        (3, 1): [Passage(1, True, 0)],
        (2, 3): [Passage(1, False, 0)],
        (3, 2): [Passage(1, True, 0)],
    }
    frozen = replace(PLAN, graph=replace(PLAN.graph, ops=tuple(replace(op, trainable=False) for op in PLAN.graph.ops)))
    frozen = replace(frozen, costs=replace(frozen.costs, graph_fingerprint=frozen.graph.fingerprint))
    assert {*channels_of(frozen, 4)} == {(0, 1), (0, 2), (1, 3), (2, 3)}


def test_devices_are_equal_if_they_get_equal_messages_from_equal_devices() -> None:
    assert first_equal("abcab") == [0, 1, 2, 0, 1]
    work = "xyyzz"
    assert equal_devices(work, {}) == [0, 1, 1, 3, 3]
    assert equal_devices(work, {(0, 1): "m", (0, 2): "m", (1, 3): "n", (2, 4): "n"}) == [0, 1, 1, 3, 3]
    assert equal_devices(work, {(0, 1): "m", (0, 2): "other"}) == [0, 1, 2, 3, 3]
    # Device 1 gets another message than 2, so what they send to 3 and 4 is not from equal devices.
    assert equal_devices(work, {(0, 1): "m", (1, 3): "n", (2, 4): "n"}) == [0, 1, 2, 3, 4]
