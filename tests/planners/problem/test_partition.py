"""Partitions and the plans that are made of them, by hand."""

from dataclasses import replace

import pytest
from problems import cluster, table

from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.problem.partition import (
    Part,
    Problem,
    assemble,
    assemble_in_order,
    crossing_bytes,
    is_chain,
    stage_order,
)
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail, most_stages_per_device, own_stages
from graphpipe.plans import Plan


def diamond(*, whole_batch: str = "") -> Problem:
    """Return `a`, which `b` and `c` read, and `d`, which reads these. All values of an operator are one output."""
    sizes = {("a", "b"): 5.0, ("a", "c"): 7.0, ("b", "d"): 20.0, ("c", "d"): 300.0}
    graph = Graph(
        name="diamond",
        ops=tuple(Op(name=name, parameter_bytes=1.0, whole_batch=name == whole_batch) for name in "abcd"),
        edges=tuple(Edge(source=s, target=t, bytes_per_sample=count) for (s, t), count in sizes.items()),
    )
    return Problem(graph, table(graph, dict.fromkeys("abcd", (0.0, 1.0))), cluster(8), 8)


def parts(*ops: str, sizes: tuple[int, ...] = (), **fields: object) -> list[Part]:
    sizes = sizes or (1,) * len(ops)
    return [Part(tuple(names), 1, size, **fields) for names, size in zip(ops, sizes, strict=True)]  # pyright: ignore[reportArgumentType]


def edges(plan: Plan) -> list[tuple[int, int, float]]:
    return [(edge.source, edge.target, edge.bytes_per_sample) for edge in plan.edges]


def test_an_output_that_a_stage_reads_twice_crosses_once() -> None:
    graph = diamond().graph
    assert crossing_bytes(graph, parts("a", "bc", "d")) == {(0, 1): 7, (1, 2): 320}
    assert crossing_bytes(graph, parts("a", "b", "c", "d")) == {(0, 1): 5, (0, 2): 7, (1, 3): 20, (2, 3): 300}
    assert crossing_bytes(graph, parts("abcd")) == {}


def test_a_value_without_bytes_crosses_too() -> None:
    graph = diamond().graph
    empty = replace(graph, edges=tuple(replace(edge, bytes_per_sample=0.0) for edge in graph.edges))
    crossing = crossing_bytes(empty, parts("d", "bc", "a"))
    assert crossing == {(1, 0): 0.0, (2, 1): 0.0}
    assert stage_order(3, crossing) == [2, 1, 0]


def test_parts_have_an_order_if_values_can_go_forward() -> None:
    graph = diamond().graph
    assert stage_order(3, crossing_bytes(graph, parts("a", "bc", "d"))) == range(3)
    assert stage_order(3, crossing_bytes(graph, parts("d", "bc", "a"))) == [2, 1, 0]
    assert stage_order(2, crossing_bytes(graph, parts("ad", "bc"))) is None
    assert stage_order(2, crossing_bytes(graph, parts("bd", "ac"))) == [1, 0]


def test_a_plan_of_parts_in_any_order_is_that_of_the_parts_in_order() -> None:
    there, mixed, devices = parts("a", "bc", "d"), parts("d", "bc", "a"), [(5,), (3,), (1,)]
    for chain in (False, True):
        found = assemble_in_order(diamond(), mixed, devices, planner="hand", chain=chain)
        assert found == assemble(diamond(), there, planner="hand", chain=chain, devices=devices[::-1])
    placed = assemble_in_order(diamond(), mixed, None, planner="hand", schedule="gpipe")
    assert placed == assemble(diamond(), there, planner="hand", schedule="gpipe")
    assert assemble_in_order(diamond(), parts("ad", "bc"), None, planner="hand") is None


def test_a_plan_has_the_edges_devices_and_samples_in_flight_of_its_parts() -> None:
    plan = assemble(diamond(), parts("a", "b", "c", "d", sizes=(1, 2, 1, 1)), planner="hand")
    assert edges(plan) == [(0, 1, 5), (0, 2, 7), (1, 3, 20), (2, 3, 300)]
    assert [stage.in_flight for stage in plan.stages] == [6, 4, 2, 1]
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,), (3,)]
    assert [stage.name for stage in plan.stages] == ["s0", "s1", "s2", "s3"]
    assert (plan.planner, plan.schedule, plan.trains, is_chain(plan)) == ("hand", "1f1b", True, False)
    gpipe = assemble(diamond(), parts("a", "bcd"), planner="hand", schedule="gpipe")
    assert [stage.in_flight for stage in gpipe.stages] == [8, 8]
    assert is_chain(gpipe)
    assert is_chain(assemble(diamond(), parts("abcd"), planner="hand"))


def test_a_sequential_pipeline_warms_up_through_every_stage() -> None:
    plan = assemble(diamond(), parts("a", "b", "c", "d"), planner="hand", chain=True)
    assert edges(plan) == [(0, 1, 5), (0, 2, 7), (1, 2, 0), (1, 3, 20), (2, 3, 300)]
    assert [stage.in_flight for stage in plan.stages] == [4, 3, 2, 1]
    assert is_chain(plan)
    fed = assemble(diamond(), parts("a", "b", "cd"), planner="hand", chain=True)
    assert edges(fed) == [(0, 1, 5), (0, 2, 7), (1, 2, 20)]


def test_what_a_part_says_is_what_its_stage_does() -> None:
    own = Part(("a", "b"), 2, 4, burst=2, recompute=("a",), state="optimizer", offload=("b",))
    alone = Part(("c", "d"), 1, 4, recompute="full", state="all")
    plan = assemble(diamond(), [own, alone], planner="hand", schedule="kfkb")
    assert Part.of(plan.stages[0]) == own
    # One replica shards nothing.
    assert Part.of(plan.stages[1]) == replace(alone, state="whole")
    assert [stage.devices for stage in plan.stages] == [(0, 1), (2,)]
    assert Part.of(assemble(diamond(), [Part(tuple("abcd"), 1, 4)], planner="hand").stages[0]).burst == 1


def test_a_stage_with_a_host_takes_its_first_devices() -> None:
    replicated = [replace(each, degree=2, micro_batch=2) for each in parts("a", "b", "c")] + parts("d")
    plan = assemble(diamond(), replicated, planner="hand", hosts={0: 2, 3: 2})
    # Stages 1 and 2 do not exchange anything, and both fit into the first node.
    assert [stage.devices for stage in plan.stages] == [(2, 3), (0, 1), (2, 3), (2,)]
    # Stage 3 reads from stage 2, so it is placed near it: in the second node, where the first is full.
    near = [
        replace(each, degree=degree, micro_batch=12)
        for each, degree in zip(parts("a", "b", "c", "d"), (1, 3, 2, 1), strict=True)
    ]
    found = assemble(replace(diamond(), batch_size=12), near, planner="hand", hosts={0: 1})
    assert [stage.devices for stage in found.stages] == [(0,), (0, 1, 2), (4, 5), (6,)]
    given = assemble(diamond(), parts("ab", "cd"), planner="hand", devices=[(5,), (3,)])
    assert [stage.devices for stage in given.stages] == [(5,), (3,)]


def test_samples_in_flight_and_versions_of_policies() -> None:
    problem = diamond()
    chain = [[1], [2], []]
    assert problem.in_flight([4, 4, 4], [1, 1, 1], chain) == (8, 8, 4)
    assert replace(problem, weights="stash").in_flight([4, 4, 4], [1, 1, 1], chain) == (12, 8, 4)
    assert replace(problem, weights="double-buffer").in_flight([4] * 4, [1] * 4, [[1], [2], [3], []]) == (12, 12, 8, 4)
    # 12 samples in flight, 4 of them of this micro-batch: 8 are ahead, a mini-batch.
    assert replace(problem, weights="stash").versions(12, 4) == 2
    assert replace(problem, weights="predict", predictor="spectrain").versions(4, 4) == 2
    for weights in ("stash", "double-buffer"):
        plan = assemble(replace(problem, weights=weights), parts("a", "bcd", sizes=(8, 8)), planner="hand")
        assert (plan.weights, [stage.in_flight for stage in plan.stages]) == (weights, [16, 8])


def test_stages_of_the_tail_may_share_devices_with_those_that_feed_it() -> None:
    problem = diamond(whole_batch="c")
    tail = WholeBatchTail.of(problem.graph)
    assert tail.ops == ("c", "d")
    assert tail.before is not None
    assert [(op.name) for op in tail.before.ops] == ["a", "b"]
    assert [(edge.source, edge.target) for edge in tail.before.edges] == [("a", "b")]
    assert tail.part(replace(problem, recompute="full")) == Part(("c", "d"), 1, 8, recompute="full")
    before = parts("a", "b")
    assert tail.hosts(problem, before) == [0, 1]
    assert WholeBatchTail.of(diamond(whole_batch="d").graph).hosts(problem, parts("a", "b", "c")) == [1, 2]
    assert WholeBatchTail.of(diamond(whole_batch="a").graph).before is None
    assert WholeBatchTail.of(diamond().graph) == WholeBatchTail(diamond().graph, ())


@pytest.mark.parametrize(("hosts", "most"), [({}, 1), ({1: 0}, 2), ({1: 0, 2: 0}, 2), ({2: 0}, 1)])
def test_stages_of_the_tail_are_not_counted_on_a_device(hosts: dict[int, int], most: int) -> None:
    problem = diamond(whole_batch="c")
    plan = assemble(problem, parts("a", "b", "cd", sizes=(1, 1, 8)), planner="hand", hosts=hosts)
    assert most_stages_per_device(plan) == most
    assert [stage.name for stage in own_stages(plan)] == ["s0", "s1"]


def test_a_plan_of_a_tail_alone_counts_no_stage() -> None:
    problem = diamond(whole_batch="a")
    assert most_stages_per_device(assemble(problem, parts("abcd", sizes=(8,)), planner="hand")) == 0
