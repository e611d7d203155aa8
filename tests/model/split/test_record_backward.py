"""The record of a model's backward tells of every cut what a run of the stages tells."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest
import torch
from run_splits import CalledTwice, Scale
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.files.json_body import from_body, to_body
from graphpipe.graph import Graph, Origin, split_ops
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.split.record_backward import record_backward
from graphpipe.model.split.whole_backwards import whole_backwards
from graphpipe.model.zoo.blocks import Concat, Dense
from graphpipe.plans.backward_record import BackwardRecord, whole_stages


class Own(nn.Module):
    """Calls a function with its own backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return Scale.apply(x, self.weight)  # type: ignore[return-value]


class Mix(nn.Module):
    """Reads its first input twice, each time beside the second."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(torch.cat([torch.tanh(a * b), a + b], dim=1))


def models() -> dict[str, gp.DagModule]:
    def dag(modules: Mapping[str, nn.Module], **inputs: list[str]) -> gp.DagModule:
        return gp.DagModule(dict(modules), inputs=inputs)

    tied = {name: nn.Linear(4, 4) for name in ("a", "b", "c", "d")}
    tied["d"].weight = tied["b"].weight
    frozen = {name: nn.Linear(4, 4) for name in ("a", "b", "c")}
    frozen["a"].requires_grad_(False)
    return {
        "own": dag({"a": nn.Linear(4, 4), "b": Own(), "c": nn.Linear(4, 4)}, a=["x"], b=["a"], c=["b"]),
        "twice": dag({"a": nn.Linear(4, 4), "b": CalledTwice(4), "c": nn.GELU()}, a=["x"], b=["a"], c=["b"]),
        "tied": dag(tied, a=["x"], b=["a"], c=["b"], d=["c"]),
        "frozen": dag(frozen | {"mix": Mix()}, a=["x"], b=["a"], c=["y"], mix=["b", "c"]),
        # A stage of b, mix and c receives a only. What b computes from the model's input is outside its trunk, and the
        # trunk reads it twice: such a stage cannot split, although each of its operators can.
        "beside": dag(
            {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "mix": Mix(), "c": nn.Linear(4, 4)},
            a=["x"],
            b=["y"],
            mix=["b", "a"],
            c=["mix"],
        ),
    }


def cuts(graph: Graph) -> Iterator[list[tuple[str, ...]]]:
    """Yield every partition into two or three sets of operators in which edges only lead forward."""
    order = graph.order
    for size in range(1, len(order)):
        for first in combinations(order, size):
            if all(edge.source in first for edge in graph.edges if edge.target in first):
                rest = [name for name in order if name not in first]
                yield [first, tuple(rest)]
                if len(rest) > 1:
                    yield [first, tuple(rest[:1]), tuple(rest[1:])]


SEVERAL = "several operations use one parameter"
OWN = "ScaleBackward, a function with its own backward, uses parameters beside received values"


@pytest.mark.parametrize(
    ("name", "method", "reasons"),
    [
        ("own", "declared", {OWN}),
        ("own", "export", set()),
        ("twice", "declared", {SEVERAL}),
        ("tied", "declared", set()),
        ("frozen", "declared", {SEVERAL}),
        ("beside", "declared", {SEVERAL}),
        ("beside", "export", {SEVERAL}),
    ],
)
def test_a_record_agrees_with_a_run_of_the_stages_on_every_cut(name: str, method: Any, reasons: set[str]) -> None:
    model = models()[name]
    inputs = {each: torch.zeros(2, 4) for each in model.input_names}
    captured = capture_nodes(model, inputs, Origin(method=method))
    record = record_backward(model, captured)
    assert from_body(BackwardRecord, to_body(record), "here") == record
    cluster = gp.Cluster.preset("local:4")
    costs = gp.estimate(captured.graph, cluster)
    found: set[str] = set()
    for ops in cuts(captured.graph):
        stages = [gp.HandStage(ops=each, devices=(at,), micro_batch=2) for at, each in enumerate(ops)]
        plan = gp.hand_plan(captured.graph, costs, cluster, batch_size=4, stages=stages)
        whole = whole_stages(record, plan.stages)
        assert whole == whole_backwards(plan, model, captured), ops
        found |= {*whole.values()}
    assert found == reasons


def test_the_record_of_a_model_holds_for_its_split_layers() -> None:
    # A layer's parts and their sum do not appear in it. They pass gradients on as the whole layer does.
    feeds = {"left": ["x"], "right": ["x"], "joined": ["left", "right"], "head": ["joined"], "end": ["head"]}
    model = gp.DagModule(
        {"left": nn.Linear(4, 4), "right": Dense(4, 4), "joined": Concat(), "head": Dense(8, 4), "end": Dense(4, 4)},
        inputs=feeds,
    )
    captured = capture_nodes(model, {"x": torch.zeros(2, 4)}, Origin(method="export"))
    record = record_backward(model, captured)
    graph = split_ops(captured.graph, ["head"])
    costs = gp.estimate(graph, gp.Cluster.preset("local:4"))
    for ops in cuts(graph):
        stages = [gp.HandStage(ops=each, devices=(at,), micro_batch=2) for at, each in enumerate(ops)]
        plan = gp.hand_plan(graph, costs, gp.Cluster.preset("local:4"), batch_size=4, stages=stages)
        assert whole_stages(record, plan.stages) == whole_backwards(plan, model, captured), ops
