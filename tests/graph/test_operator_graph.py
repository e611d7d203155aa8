"""The operator graph: derived values and refused inputs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, EdgeValue, Graph, Input, Measured, Op, Origin, Shared, Work

A, B, C = Op(name="a"), Op(name="b"), Op(name="c")


def graph(*ops: Op, edges: str = "") -> Graph:
    pairs = [pair.split(">") for pair in edges.split()]
    return Graph(name="g", ops=ops, edges=tuple(Edge(source=source, target=target) for source, target in pairs))


def test_neighbours_and_order() -> None:
    diamond = graph(Op(name="d"), A, B, C, edges="a>b a>c b>d c>d")
    assert diamond.successors == {"d": (), "a": ("b", "c"), "b": ("d",), "c": ("d",)}
    assert diamond.predecessors == {"d": ("b", "c"), "a": (), "b": ("a",), "c": ("a",)}
    assert diamond.order == ("a", "b", "c", "d")
    assert diamond["c"] is C


def test_outputs_get_a_gradient_if_the_operator_or_one_before_it_trains() -> None:
    frozen = Op(name="frozen", parameter_bytes=4, trainable=False)
    trained, glue, after = Op(name="trained", parameters=("w",)), Op(name="glue"), replace(frozen, name="after")
    towers = graph(glue, frozen, trained, after, edges="glue>frozen frozen>after trained>after")
    assert towers.differentiable == {"trained", "after"}
    assert graph(A, B, edges="a>b").differentiable == {"a", "b"}  # the graph does not list any parameters
    assert graph(A, frozen, edges="a>frozen").differentiable == frozenset()


def test_the_order_keeps_a_branch_together() -> None:
    towers = graph(*(Op(name=name) for name in ("p", "q", "p2", "q2", "z")), edges="p>p2 q>q2 p2>z q2>z")
    assert towers.order == ("p", "p2", "q", "q2", "z")


def test_a_saved_graph_loads_equal_and_has_the_same_fingerprint(tmp_path: Path) -> None:
    whole = Graph(
        name="whole",
        ops=(
            Op(
                name="a",
                kind="Linear",
                parameters=("a.weight",),
                parameter_bytes=8,
                output_bytes_per_sample=4.5,
                work=Work(flops_per_sample=1, traffic_bytes_per_sample=2, saved_bytes_per_sample=3, kernels=4),
                measured=Measured(forward_seconds=0.1, backward_seconds=0.2, samples=3),
                model_inputs=("x",),
                trainable=False,
                whole_batch=True,
            ),
            B,
        ),
        edges=(Edge(source="a", target="b", bytes_per_sample=4.5),),
        inputs=(Input(name="x", sample_shape=(2, 3), dtype="float32"),),
        origin=Origin(method="export", split=("a",)),
    )
    whole.save(tmp_path / "graph.json")
    loaded = Graph.load(tmp_path / "graph.json")
    assert loaded == whole
    assert loaded.fingerprint == whole.fingerprint != graph(A).fingerprint


@pytest.mark.parametrize(
    ("ops", "edges", "sentence"),
    [
        ((), "", "graph 'g': the graph has no operators"),
        ((A, A), "", "2 operators are named 'a'. Names must be unique"),
        ((A,), "a>x", "edge a -> x names 'x', which is not an operator"),
        ((A, B), "a>b a>b", "edge a -> b is listed 2 times"),
        ((A,), "a>a", "the graph has a cycle: a -> a"),
        ((A, B, C), "a>b b>c c>b", "the graph has a cycle: b -> c -> b"),
    ],
)
def test_an_invalid_graph_is_refused(ops: tuple[Op, ...], edges: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        graph(*ops, edges=edges)


def test_the_cycle_is_spelled_out_along_its_edges() -> None:
    with pytest.raises(InvalidInput) as raised:
        graph(*(Op(name=name) for name in "abcde"), edges="a>b b>c c>d d>b d>e")
    stops = raised.value.what.removeprefix("the graph has a cycle: ").split(" -> ")
    assert stops[0] == stops[-1]
    assert set(itertools.pairwise(stops)) == {("b", "c"), ("c", "d"), ("d", "b")}


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("parameter_bytes", lambda amount: Op(name="a", parameter_bytes=amount)),
        ("output_bytes_per_sample", lambda amount: Op(name="a", output_bytes_per_sample=amount)),
        ("work.flops_per_sample", lambda amount: Op(name="a", work=Work(flops_per_sample=amount))),
        ("work.saved_bytes_per_sample", lambda amount: Op(name="a", work=Work(saved_bytes_per_sample=amount))),
        (
            "measured.backward_seconds",
            lambda amount: Op(name="a", measured=Measured(forward_seconds=1, backward_seconds=amount, samples=1)),
        ),
    ],
)
def test_impossible_costs_are_refused(field: str, build: Callable[[float], Op], amount: float) -> None:
    with pytest.raises(InvalidInput, match=f"op a, {field}: is {amount}, must be finite and not negative"):
        graph(build(amount))


def test_impossible_edge_bytes_and_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="edge a -> b, bytes_per_sample: is nan"):
        Graph(name="g", ops=(A, B), edges=(Edge(source="a", target="b", bytes_per_sample=math.nan),))
    with pytest.raises(InvalidInput, match=r"op a, measured\.samples: is 0, must be at least 1"):
        graph(Op(name="a", measured=Measured(forward_seconds=1, backward_seconds=1, samples=0)))


def values(**counts: float) -> tuple[EdgeValue, ...]:
    return tuple(EdgeValue(name=name, bytes_per_sample=count) for name, count in counts.items())


def reading(*edges: tuple[str, float, tuple[EdgeValue, ...]]) -> Graph:
    """Return a graph in which operators read values of `a`."""
    readers = tuple(Edge(source="a", target=to, bytes_per_sample=count, values=each) for to, count, each in edges)
    return Graph(name="g", ops=(A, B, C), edges=readers)


def test_edges_list_the_values_of_operators_that_send_several() -> None:
    two = reading(("b", 3.0, values(x=3.0)), ("c", 8.0, values(x=3.0, y=5.0)))
    assert [(read.target, read.value, read.bytes_per_sample) for read in two.reads] == [
        ("b", ("a", "x"), 3.0),
        ("c", ("a", "x"), 3.0),
        ("c", ("a", "y"), 5.0),
    ]
    plain = reading(("b", 3.0, ()), ("c", 8.0, ()))
    assert [(read.value, read.bytes_per_sample) for read in plain.reads] == [(("a", ""), 3.0), (("a", ""), 8.0)]
    assert two.fingerprint == plain.fingerprint  # plans that were saved before values had names stay valid


@pytest.mark.parametrize(
    ("edges", "sentence"),
    [
        ([("b", 3.0, values(x=3.0)), ("c", 3.0, ())], "edge a -> c: lists values, or another edge of its source does"),
        ([("b", 4.0, values(x=3.0))], "edge a -> b: has 4 bytes per sample, but its values have 3"),
        ([("b", 3.0, values(x=3.0)), ("c", 4.0, values(x=4.0))], "value 'x' has 4 bytes per sample here and 3 on"),
        ([("b", 6.0, (*values(x=3.0), *values(x=3.0)))], "edge a -> b: lists a value twice"),
        ([("b", math.nan, values(x=math.nan))], "bytes_per_sample: is nan"),
        ([("b", 1.0, values(x=-1.0, y=2.0))], "edge a -> b, value 'x': is -1.0"),
    ],
)
def test_values_that_contradict_each_other_are_refused(edges: list[tuple[str, float, tuple[EdgeValue, ...]]], sentence):
    with pytest.raises(InvalidInput, match=sentence):
        reading(*edges)


def test_a_file_with_a_cycle_or_an_unknown_field_names_file_and_fault(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    graph(A, B, edges="a>b").save(path)
    text = path.read_text()
    path.write_text(text.replace('"target": "b"', '"target": "a"'))
    with pytest.raises(InvalidInput, match=r"graph\.json, graph 'g': the graph has a cycle: a -> a"):
        Graph.load(path)
    path.write_text(text.replace('"kind"', '"kindness"', 1))
    with pytest.raises(InvalidInput, match=r"graph\.json, field ops\.0\.kindness"):
        Graph.load(path)


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ((Shared(name="w", bytes=float("nan")),), "shared parameter 'w', bytes: is nan"),
        ((Shared(name="v", bytes=4.0),), r"shared parameter 'v': is held by fewer than two operators \(b\)"),
        ((Shared(name="u", bytes=4.0),), r"fewer than two operators \(none\)"),
        ((Shared(name="w", bytes=4.0), Shared(name="w", bytes=4.0)), "shared parameter 'w': is listed twice"),
    ],
)
def test_shared_parameters_have_two_holders(shared: tuple[Shared, ...], message: str) -> None:
    ops = (Op(name="a", parameters=("w",)), Op(name="b", parameters=("v", "w")))
    assert Graph(name="g", ops=ops, edges=(), shared=(Shared(name="w", bytes=4.0),)).holders == {"w": ("a", "b")}
    with pytest.raises(InvalidInput, match=message):
        Graph(name="g", ops=ops, edges=(), shared=shared)
