"""What operators add to a stage, by hand."""

from dataclasses import replace

import pytest
from problems import KIND, cluster, towers
from unequal_links import linked

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import (
    LEAST_LOAD,
    all_reduce_seconds_per_byte,
    degrees_of,
    far_bandwidth,
    micro_batch_sizes,
    smallest_memory_bytes,
    stage_seconds,
    update_seconds_per_byte,
)

NEAR, FAR = 5e10, 1.25e10


def problem(**changes: object) -> Problem:
    found = towers([1], 8, 8, layer=(1.0, 10.0), join=(0.0, 0.0), parameter_bytes=NEAR)
    costs = replace(found.costs, optimizer_seconds_per_parameter_byte=4 / NEAR)
    return replace(found, costs=costs, **changes)  # pyright: ignore[reportArgumentType]


def seconds(found: Problem, micro_batch: int, degree: int, types: tuple[str, ...] | None = None) -> list[float]:
    model = CostModel.of(found.graph, found.costs, found.cluster)
    return stage_seconds(found, model, micro_batch, degree, types).tolist()


def test_a_forward_two_gradients_and_a_share_of_the_update() -> None:
    # Two samples on each of two devices take 21 s, three times. An update of NEAR bytes takes 2 s / 2 + 4 s.
    assert seconds(problem(), 4, 2) == pytest.approx([3 * 21 + 5 / 2, LEAST_LOAD])
    assert seconds(problem(recompute="full"), 4, 2) == pytest.approx([4 * 21 + 5 / 2, LEAST_LOAD])
    assert seconds(problem(), 3, 2) == pytest.approx([3 * 16 + 5 * 3 / 8, LEAST_LOAD])
    assert seconds(problem(), 4, 1) == pytest.approx([3 * 41 + 4 / 2, LEAST_LOAD])


def test_the_slowest_of_the_types_counts() -> None:
    found = problem()
    rows = [
        replace(row, device_type="a", forward=replace(row.forward, lines=((0.0, 50.0),))) for row in found.costs.rows
    ]
    devices = tuple(replace(each, type="a" if at else KIND.name) for at, each in enumerate(found.cluster.devices))
    kinds = (*found.cluster.device_types, replace(KIND, name="a"))
    mixed = replace(
        found,
        cluster=replace(found.cluster, device_types=kinds, devices=devices),
        costs=replace(found.costs, rows=(*found.costs.rows, *rows)),
    )
    assert seconds(mixed, 4, 2)[0] == pytest.approx(100 + 2 * 21 + 5 / 2)
    assert seconds(mixed, 4, 2, (KIND.name,))[0] == pytest.approx(3 * 21 + 5 / 2)
    assert seconds(mixed, 4, 2, ("a",))[0] == pytest.approx(100 + 2 * 21 + 5 / 2)


def test_an_update_is_an_all_reduce_and_an_optimizer_step_or_parts_of_them() -> None:
    found = problem()
    # Rings of 2 and of 4 are inside a node, that of 8 is not.
    assert [all_reduce_seconds_per_byte(found, degree) * NEAR for degree in (1, 2, 4)] == pytest.approx([0, 1, 1.5])
    assert all_reduce_seconds_per_byte(found, 8) * FAR == pytest.approx(1.75)
    whole, optimizer, everything = (
        update_seconds_per_byte(replace(found, state=state), 4) * NEAR for state in ("whole", "optimizer", "all")
    )
    assert (whole, optimizer, everything) == pytest.approx((1.5 + 4, 1.5 * 1.5 + 1, 1.5 + 1))


def test_sizes_degrees_memory_and_bandwidth() -> None:
    found = problem()
    assert [micro_batch_sizes(size) for size in (12, 15)] == [[1, 2, 3, 4, 6, 12], [1, 3, 5, 15]]
    assert degrees_of(found, 12) == (1, 2, 3, 4, 6)
    assert degrees_of(found, 8) == (1, 2, 4, 8)
    assert degrees_of(replace(found, cluster=cluster(3)), 12) == (1, 2, 3)
    assert smallest_memory_bytes(replace(found, cluster=cluster(2, memory_bytes=7.0))) == 7
    assert (far_bandwidth(found), far_bandwidth(replace(found, message_bandwidth=3.0))) == (FAR, 3.0)
    # Where links differ, what a byte takes on average: 1, 1/2 and 1/4 s.
    unequal = linked("abc", {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 4.0})
    assert far_bandwidth(replace(found, cluster=unequal)) == pytest.approx(3 / 1.75)
