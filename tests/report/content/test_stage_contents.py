"""A stage's contents name whole submodules, and numbered neighbours together."""

from itertools import pairwise

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.report.content.stage_contents import stage_contents


def contents(*stages: str) -> list[list[str]]:
    """Return the contents of stages, each given by the names of its operators, which form a chain."""
    names = [name for stage in stages for name in stage.split()]
    ops = tuple(
        Op(name=name, kind="linear", parameter_bytes=4.0, output_bytes_per_sample=4.0, work=Work(flops_per_sample=1e6))
        for name in names
    )
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=4.0) for a, b in pairwise(names))
    graph = Graph(name="m", ops=ops, edges=edges)
    cluster = Cluster.preset(f"summit:1x{len(stages)}")
    by_hand = [HandStage(ops=tuple(s.split()), devices=(n,), micro_batch=1) for n, s in enumerate(stages)]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=2, stages=by_hand)
    return [stage_contents(plan, number) for number in range(len(stages))]


def test_whole_submodules_and_runs_of_numbers() -> None:
    found = contents(
        "image.layer0.a image.layer0.b image.layer1.a image.layer1.b image.layer2.a", "image.layer2.b text.x"
    )
    assert found == [["image.layer0-1", "image.layer2.a"], ["image.layer2.b", "text"]]


def test_numbered_branches_and_a_shared_root() -> None:
    assert contents("m.layers.0.a m.layers.0.b m.layers.1.a m.layers.1.b", "m.layers.2.a m.layers.2.b m.head") == [
        ["layers.0-1"],
        ["layers.2", "head"],
    ]
    assert contents("branch0.a branch1.a", "head") == [["branch0-1"], ["head"]]
    assert contents("a.x a.y", "a.z") == [["x", "y"], ["z"]]


def test_many_are_counted() -> None:
    assert contents("a b c d e", "f") == [["a", "b", "and 3 more"], ["f"]]


def test_a_long_name_keeps_its_end() -> None:
    (first, _) = contents("encoder.layer10.attention encoder.layer10.a x", "encoder.layer10.b")
    assert first == ["…der.layer10.attention", "encoder.layer10.a", "x"]
