"""What exchanges of devices compare."""

from dataclasses import replace

import pytest
from builders import Part as MadePart
from builders import make_plan
from problems import table, towers
from unequal_links import SLOW, linked

from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.improve.exchange_devices import after_exchange, on_first_devices, transfer_seconds
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.simulator import step_seconds


def test_transfers_by_hand() -> None:
    """A ring of d devices once counted as 1 instead of 2 (d - 1) / d times the gradients, and messages one way only."""
    graph = Graph(
        name="pair",
        ops=(Op(name="a", parameter_bytes=3e6), Op(name="b")),
        edges=(Edge(source="a", target="b", bytes_per_sample=1e6),),
    )
    problem = Problem(graph, table(graph, dict.fromkeys("ab", (0.0, 1.0))), linked("abcd", {}, intra=SLOW), 12)
    plan = assemble(problem, [Part(("a",), 3, 6), Part(("b",), 1, 6)], planner="test")
    # 12 samples of 1 MB there and back over 1 GB/s, and 4/3 of 3 MB around the ring.
    assert transfer_seconds(plan) == pytest.approx(2 * 12e-3 + 4e-3)


def test_neighbours_are_exchanged_with_the_devices() -> None:
    plan = make_plan([MadePart(degree=2), MadePart(degree=2)], batch_size=4)
    stages = (replace(plan.stages[0], offload=("s0",), offload_to=(2, 3)), plan.stages[1])
    found = after_exchange(replace(plan, stages=stages), {0: 3, 3: 0}).stages
    assert [(stage.devices, stage.offload_to) for stage in found] == [((1, 3), (0, 2)), ((0, 2), ())]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(2, 3), (0, 1)], [(0, 1), (2, 3)]),
        ([(5,), (6, 7), (1,), (4,)], [(0,), (1, 2), (4,), (3,)]),  # Nodes of four devices stay together.
        ([(1,), (1, 2), (2,)], [(0,), (0, 1), (1,)]),
    ],
)
def test_alike_devices_are_numbered_by_use(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> None:
    problem = towers([2, 2], 8, 8)
    ops = problem.graph.order
    parts = [Part(ops[at : at + 1], len(team), 2 * len(team)) for at, team in enumerate(before[:-1])]
    parts.append(Part(ops[len(before) - 1 :], len(before[-1]), 2 * len(before[-1])))
    plan = assemble(problem, parts, planner="test", devices=before)
    found = on_first_devices(plan)
    assert [stage.devices for stage in found.stages] == after
    assert step_seconds(found) == pytest.approx(step_seconds(plan))


def test_unlike_devices_keep_their_stages() -> None:
    problem = towers([2, 2], 2, 8)
    kind = problem.cluster.device_types[0]
    other = replace(problem.cluster.devices[1], type="other")
    types, devices = (kind, replace(kind, name="other")), (problem.cluster.devices[0], other)
    rows = (*problem.costs.rows, *(replace(row, device_type="other") for row in problem.costs.rows))
    costs, cluster = replace(problem.costs, rows=rows), replace(problem.cluster, device_types=types, devices=devices)
    unlike = replace(problem, cluster=cluster, costs=costs)
    plan = assemble(unlike, [Part(problem.graph.order, 1, 2)], planner="test", devices=[(1,)])
    assert on_first_devices(plan) is plan
