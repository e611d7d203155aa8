"""More samples in flight, against sums by hand."""

from dataclasses import replace
from itertools import product

import pytest
from builders import Part, make_plan

from graphpipe.cluster import HostMemory
from graphpipe.costs import SavedBytes
from graphpipe.planners.raise_in_flight import with_room, with_slack
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import host_bytes
from graphpipe.simulator import step_seconds


def in_flight(plan: Plan) -> list[int]:
    return [stage.in_flight for stage in plan.stages]


def with_memory(plan: Plan, count: float) -> Plan:
    types = tuple(replace(kind, memory_bytes=count) for kind in plan.cluster.device_types)
    return replace(plan, cluster=replace(plan.cluster, device_types=types))


def test_slack_is_one_micro_batch_for_every_following_stage() -> None:
    assert in_flight(make_plan([Part()] * 3, batch_size=8)) == [3, 2, 1]
    assert in_flight(with_slack(make_plan([Part()] * 3, batch_size=8))) == [3 + 2, 2 + 1, 1]
    halves = make_plan([Part(micro_batch=2), Part(micro_batch=2), Part(micro_batch=2)], batch_size=16)
    assert in_flight(with_slack(halves)) == [6 + 4, 4 + 2, 2]


def test_slack_follows_the_longest_way_out() -> None:
    edges = [(0, 1, 0.0), (1, 2, 0.0), (0, 2, 0.0), (2, 3, 0.0)]
    plan = make_plan([Part()] * 4, edges, batch_size=16)
    added = [more - less for more, less in zip(in_flight(with_slack(plan)), in_flight(plan), strict=True)]
    assert added == [3, 2, 1, 0]


def test_slack_ends_at_what_a_full_stage_before_can_send() -> None:
    # A mixed cluster once got a plan whose devices waited for each other forever: the stage with the least memory came
    # first and kept its 5 samples, and the next one wanted 4 + 3 before its first backward.
    plan = with_memory(make_plan([Part(saved_bytes=10.0), *[Part()] * 4], batch_size=16), 50.0)
    assert in_flight(plan) == [5, 4, 3, 2, 1]
    assert in_flight(with_slack(plan)) == [5, 5, 5, 3, 1]


@pytest.mark.parametrize("sizes", list(product((1, 2, 4), repeat=4))[::5])
def test_slack_of_any_sizes_and_bursts_runs_to_its_end(sizes: tuple[int, ...]) -> None:
    for bursts in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 2)):
        parts = [Part(micro_batch=size, burst=burst) for size, burst in zip(sizes, bursts, strict=True)]
        plan = make_plan([replace(parts[0], saved_bytes=1.0), *parts[1:]], batch_size=32)
        full = with_memory(plan, plan.stages[0].in_flight)
        assert step_seconds(replace(with_slack(full), schedule="kfkb")) > 0  # or it raises an error


def test_room_counts_what_waits_between_halves() -> None:
    plan = make_plan([Part(saved_bytes=10.0)] * 3, batch_size=4)
    rows = tuple(replace(row, between_halves=SavedBytes(per_sample=15.0)) for row in plan.costs.rows)
    plan = with_memory(replace(plan, costs=replace(plan.costs, rows=rows)), 30.0)
    assert in_flight(with_room(plan)) == [3, 3, 3]
    assert in_flight(with_room(plan, splits=True)) == [
        3,
        2,
        2,
    ]  # the first stage sends no gradient, so it does not split


def test_slack_and_room_end_at_the_mini_batch_and_at_the_memory() -> None:
    plan = make_plan([Part(saved_bytes=10.0)] * 3, batch_size=4)
    assert in_flight(with_slack(plan)) == [4, 3, 1]
    assert in_flight(with_room(plan)) == [4, 4, 4]
    assert in_flight(with_slack(with_memory(plan, 39.0))) == [3, 3, 1]
    assert in_flight(with_room(with_memory(plan, 30.0))) == [3, 3, 3]
    assert in_flight(with_room(plan, limit_bytes=20.0)) == [3, 2, 2]  # never fewer than before


def test_room_counts_the_samples_of_one_replica_in_whole_micro_batches() -> None:
    # Each device keeps 10 bytes for each of its samples: 2 of a micro-batch of 4. Room for 45 more bytes is 2 of them.
    plan = make_plan([Part(saved_bytes=10.0, micro_batch=4, degree=2)], batch_size=16)
    assert in_flight(plan) == [4]
    assert in_flight(with_room(with_memory(plan, 20.0 + 45.0))) == [4 + 2 * 4]


def test_stages_on_one_device_share_its_room_and_never_lose_any() -> None:
    plan = make_plan([Part(saved_bytes=10.0, devices=(0,)), Part(saved_bytes=10.0, devices=(0,))], batch_size=16)
    assert in_flight(plan) == [2, 1]
    assert in_flight(with_room(with_memory(plan, 30.0 + 40.0))) == [2 + 2, 1 + 2]
    quarters = [replace(part, saved_bytes=0.25) for part in [Part(devices=(0,))] * 2]
    assert in_flight(with_room(with_memory(make_plan(quarters, batch_size=16), 0.75 + 1.0))) == [2 + 2, 1 + 2]
    free = make_plan([Part(parameter_bytes=4.0)] * 2, batch_size=16)
    assert in_flight(with_room(free, limit_bytes=0.0)) == [16, 16]  # more samples take no memory
    small = make_plan([Part(saved_bytes=0.25)] * 2, batch_size=16)
    assert in_flight(with_room(small, limit_bytes=0.0)) == [2, 1]


def test_a_stage_after_larger_bursts_gets_whole_micro_batches_of_what_is_sent() -> None:
    # The first stage keeps its 18 samples, and the rest of a burst is 9 - 3: 12 samples reach the next one, which wants
    # 9 + 2 * 3.
    parts = [Part(saved_bytes=10.0, micro_batch=3, burst=3), *[Part(micro_batch=3)] * 3]
    plan = with_memory(make_plan(parts, batch_size=64), 180.0)
    assert in_flight(plan) == [18, 9, 6, 3]
    assert in_flight(with_slack(plan)) == [18, 12, 9, 3]


def test_a_stage_with_larger_bursts_gets_what_is_sent() -> None:
    parts = [Part(saved_bytes=10.0), Part(burst=2), *[Part()] * 4]
    plan = with_memory(make_plan(parts, batch_size=64), 80.0)
    assert in_flight(plan) == [8, 6, 4, 3, 2, 1]
    assert in_flight(with_slack(plan)) == [8, 8, 7, 5, 3, 1]


@pytest.mark.parametrize("scale", [1.0, 1 / 128])
@pytest.mark.parametrize(
    ("held", "memory", "expected"),
    [
        (4, 28.0 + 20.0 + 17.0, 12),  # what moves at once is 40 bytes, of which 20 are there: then 8 per micro-batch
        (4, 28.0 + 20.0 + 7.0, 4),
        (4, 28.0 + 10.0, 4),  # never fewer than before
        (12, 64.0 + 7.5, 12),  # all that moves at once is there
        (12, 64.0 + 8.5, 16),
    ],
)
def test_room_leaves_what_a_stage_that_offloads_moves_at_once(
    held: int, memory: float, expected: int, scale: float
) -> None:
    # For each sample a device receives 2 bytes and offloads 5.
    parts = [Part(), Part(saved_bytes=10.0 * scale, offloads=True, degree=2, micro_batch=4, in_flight=held)]
    plan = make_plan(parts, [(0, 1, 4.0 * scale)], batch_size=16)
    assert in_flight(with_room(with_memory(plan, memory * scale)))[1] == expected


@pytest.mark.parametrize(("host", "expected"), [(1000.0, 16), (40.0 + 80.0, 12), (40.0 + 79.0, 8), (10.0, 4)])
def test_room_ends_where_the_memory_of_the_node_is_full(host: float, expected: int) -> None:
    # Each of two stages has 4 samples of 5 bytes in flight, half of them on each device. 4 more of both take 40 bytes.
    # Plans once had more samples in flight than their node had memory for.
    part = Part(saved_bytes=5.0, offloads=True, degree=2, micro_batch=4, in_flight=4)
    plan = make_plan([part, part], batch_size=16)
    plan = replace(plan, cluster=replace(plan.cluster, host_memory=(HostMemory(node="n0", bytes=host),)))
    assert in_flight(with_room(plan)) == [expected, expected]
    assert host_bytes(with_room(plan))["n0"] <= max(host, 40.0)
