"""Loads of samples: whom a name means, what operators cost, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable, Curve, Loads, OpCost, SampleLoad, Temporaries, declare_loads
from graphpipe.costs.sample_load import parse_loads
from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Input, Op, Work

GRAPH = Graph(
    name="two towers",
    ops=(
        Op(name="vision.0", model_inputs=("images",), work=Work(saved_bytes_per_sample=10.0)),
        Op(name="vision.1", work=Work(saved_bytes_per_sample=10.0)),
        Op(name="text", model_inputs=("words",), work=Work(saved_bytes_per_sample=10.0)),
        Op(name="head", work=Work(saved_bytes_per_sample=10.0)),
    ),
    edges=(
        Edge(source="vision.0", target="vision.1", bytes_per_sample=8.0),
        Edge(source="vision.1", target="head"),
        Edge(source="text", target="head"),
    ),
    inputs=(
        Input(name="images", sample_shape=(3,), dtype="float32"),
        Input(name="words", sample_shape=(5,), dtype="int64"),
    ),
)
ONE = Cluster.preset("local:1")


def table(**loads: dict[float, float]) -> CostTable:
    """Return costs of 5 seconds a task and 1 a sample forward, and of 2 a sample for the backward."""
    rows = tuple(
        OpCost(
            op=op.name,
            device_type=ONE.devices[0].type,
            forward=Curve(lines=((5.0, 1.0), (0.0, 2.0))),
            input_gradient=Curve(lines=((0.0, 2.0),)),
            weight_gradient=Curve(),
            source="profiled",
            temporaries=Temporaries(forward=Curve(lines=((7.0, 100.0),)), backward=Curve()),
        )
        for op in GRAPH.ops
    )
    costs = CostTable(graph_fingerprint=GRAPH.fingerprint, rows=rows)
    return replace(costs, loads=declare_loads(GRAPH, loads))


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("vision", ("vision.0", "vision.1")),
        ("vision.1", ("vision.1",)),
        ("*i*", ("vision.0", "vision.1")),
        ("images", ("vision.0", "vision.1")),
        ("words", ("text",)),
    ],
)
def test_a_name_means_a_submodule_an_operator_a_pattern_or_the_branch_of_an_input(
    name: str, ops: tuple[str, ...]
) -> None:
    assert [load.ops for load in declare_loads(GRAPH, {name: {1: 1.0}})] == [ops]


def test_the_loads_of_samples_are_counted() -> None:
    (load,) = declare_loads(GRAPH, {"vision": [4, 1, 1, 2.0]})
    assert (load.loads, load.shares) == ((1.0, 2.0, 4.0), (0.5, 0.25, 0.25))
    assert (load.mean, load.largest) == (2.0, 4.0)
    assert declare_loads(GRAPH, {"vision": {4: 300, 1: 600, 2: 300, 9: 0}})[0].mean == 2.0
    assert declare_loads(GRAPH, {"vision": {4: 300, 1: 600, 2: 300, 9: 0}})[0].largest == 4.0


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ({"visoin": [1]}, r"load 'visoin': matches no operator and no input of 'two towers'. Did you mean 'vision'\?"),
        ({"vision": []}, "load 'vision': has shares that sum to 0"),
        ({"vision": {1: float("nan")}}, "load 'vision': has shares that sum to nan"),
        ({"vision": {1: 2.0, 2: -1.0}}, "lists -1.0, must be finite and not negative"),
        ({"vision": [1, -1]}, "lists -1.0, must be finite and not negative"),
        ({"vision": [0, 0]}, "is 0 for every sample"),
        ({"vision": [1], "*.1": [2]}, r"operator 'vision.1' has two loads, 'vision' and '\*.1'"),
    ],
)
def test_what_cannot_be_a_load_is_refused(loads: Loads, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        declare_loads(GRAPH, loads)


def test_loads_are_written_as_text() -> None:
    written = parse_loads(["vision.*=1:0.5,4:0.25,1:.25", "text=1,1, 2.5", "a=b=3"])
    assert written == {"vision.*": {1.0: 0.75, 4.0: 0.25}, "text": [1.0, 1.0, 2.5], "a=b": [3.0]}


@pytest.mark.parametrize("text", ["vision", "=1:1", "vision=", "vision=one", "vision=1:1,2", "vision=1:0.5:2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="Write NAME=LOAD:SHARE,LOAD:SHARE or NAME=LOAD,LOAD"):
        parse_loads([text])
    with pytest.raises(InvalidInput, match="names 'a' again"):
        parse_loads(["a=1", "a=2"])


def test_samples_cost_as_much_as_their_loads() -> None:
    model = CostModel(GRAPH, table(vision={1: 0.5, 4: 0.5}), ONE)
    # 2 samples of expected load 2.5 are 5: 5 + 5 seconds. Of load 8 together: 2 * 8. The others are 5 + 2.
    assert model.task_seconds(("vision.0",), 0, 2).forward == 10.0
    assert model.task_seconds(("vision.0",), 0, 2, loads=(8.0,)).forward == 16.0
    assert model.task_seconds(("vision.0",), 0, 2, loads=(0.0,)).forward == 5.0
    assert model.task_seconds(("vision.0", "head"), 0, 0).forward == 0.0
    assert model.task_seconds(("head",), 0, 2).forward == 7.0
    assert model.task_seconds(("vision.0", "head"), 0, 2).backward == 10.0 + 4.0
    # The backward computes the forward again.
    assert model.task_seconds(("vision.0", "head"), 0, 2, "full", (8.0,)).backward == (16 + 7) + (16 + 4)


def test_memory_is_counted_for_the_largest_load() -> None:
    model = CostModel(GRAPH, table(vision={1: 0.5, 4: 0.5}), ONE)
    vision, both = (model.stage_memory(ops, 2) for ops in (("vision.0", "vision.1"), ("vision.1", "head")))
    assert (vision.saved, vision.temporary) == (80.0, 7.0 + 100.0 * 8)
    assert (both.saved, both.received) == (50.0, 8.0)
    assert model.stage_memory(("text",), 2).temporary == 207.0


def test_a_table_with_loads_is_saved_and_one_without_is_as_before(tmp_path: Path) -> None:
    plain, loaded = table(), table(vision={1: 0.5, 4: 0.5})
    loaded.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == loaded
    assert len({plain.fingerprint, loaded.fingerprint, table(vision={1: 1.0}).fingerprint}) == 3
    unknown = SampleLoad(name="a", ops=("a",), loads=(1.0,), shares=(1.0,))
    with pytest.raises(InvalidInput, match="costs, loads: 'a' is not an operator of 'two towers'"):
        CostModel(GRAPH, replace(plain, loads=(unknown,)), ONE)
    with pytest.raises(InvalidInput, match=r"costs, loads: operator 'vision.0' has 2 loads, must be one"):
        CostModel(GRAPH, replace(plain, loads=loaded.loads * 2), ONE)
