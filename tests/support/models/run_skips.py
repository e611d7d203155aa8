"""Models of the zoo with values that several later stages read, and plans that cut them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from run_models import cross_entropy
from run_plans import StageLine, hand_split, plan_for, plan_of
from run_splits import in_halves
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Graph
from graphpipe.model import DagModule
from graphpipe.model.capture.capture import Captured, capture, capture_nodes
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.model.split.split import split
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.model.zoo.zoo_model import ZooModel
from graphpipe.planners.problem.partition import Part, crossing_bytes
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan, StageEdge
from graphpipe.run import Pipeline, PipelineOptions

BATCH = 8
SIZES: dict[str, dict[str, int]] = {
    "attention-residuals": {"hidden": 16, "feed_forward": 32, "sequence": 6, "vocabulary": 12},
    "densenet": {"block0": 1, "block1": 2, "block2": 1, "block3": 1, "growth": 4, "pixels": 32},
    "unet": {"levels": 2, "pixels": 8, "channels": 4},
}
CUTS: dict[str, list[tuple[Sequence[int], int]]] = {
    "four": [((0,), 2), ((1,), 2), ((2,), 2), ((3,), 2)],
    "interleaved": [((0,), 2), ((1,), 2), ((0,), 2), ((1,), 2)],
    "together": [((0,), 2), ((1,), 4), ((1,), 4), ((1,), 2)],
    "replicated": [((0,), 4), ((1, 2), 4), ((1, 2), 4), ((3,), 2)],
}
"""Devices and micro-batch of four stages."""


@cache
def model_of(name: str) -> ZooModel:
    """Return a small model of the zoo."""
    return zoo_model(f"{name}-small", device="cpu", **SIZES[name])


@cache
def capture_of(name: str, folder: Path) -> Captured:
    """Return the capture of a model, from files in the folder if another process has made it."""
    file, graph = folder / f"{name}.capture", folder / f"{name}.json"
    if file.exists():
        captured = load_capture(file, Graph.load(graph))
        assert captured is not None
        return captured
    model = model_of(name)
    captured = capture_nodes(model.module, model.example_inputs)
    captured.graph.save(graph)
    assert save_capture(captured, file)
    return captured


def skip_plan(graph: Graph, cut: str, schedule: str = "1f1b") -> Plan:
    """Return a plan of four stages with about as many operators each."""
    order, on = graph.order, CUTS[cut]
    ends = [round(len(order) * at / len(on)) for at in range(len(on) + 1)]
    lines: list[StageLine] = [
        (order[begin:end], devices, size) for begin, end, (devices, size) in zip(ends[:-1], ends[1:], on, strict=True)
    ]
    plan = in_halves(plan_for(graph, lines, BATCH, schedule), schedule)
    sent = crossing_bytes(graph, [Part(stage.ops, 1, 1) for stage in plan.stages])
    edges = tuple(StageEdge(source=s, target=t, bytes_per_sample=count) for (s, t), count in sorted(sent.items()))
    return replace(plan, edges=edges)


def skip_batch(model: ZooModel, step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets."""
    return model.batch(torch.Generator().manual_seed(step), BATCH)


def train_skips(folder: Path, cases: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Train two steps of each (model, cut, schedule). Return losses, weights, and the bytes that all ranks received."""
    return [_train(folder, *case) for case in cases]


def _train(folder: Path, name: str, cut: str, schedule: str) -> dict[str, Any]:
    model, captured = model_of(name), capture_of(name, folder)
    _begin(model.module)
    plan = skip_plan(captured.graph, cut, schedule)
    programs = split(model.module, plan, captured)
    options = PipelineOptions(debug=True, record=True)
    with Pipeline(plan, programs, model.loss_fn, momentum, options=options) as pipeline:
        losses = [pipeline.step(*skip_batch(model, step)) for step in range(2)]
        spans = pipeline.trace().spans
        evaluated, _ = pipeline.evaluate(*skip_batch(model, 5))
        pipeline.sync_model()
    received = sum(span.bytes for span in spans if span.kind == "receive")
    return {
        "losses": [*losses, evaluated],
        "received": received,
        "state": {key: each.clone() for key, each in model.module.state_dict().items()},
    }


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of these trainings."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _begin(module: nn.Module) -> None:
    # The same weights for every training; queries of zero would hide mistakes.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


def train_alone(name: str) -> tuple[list[float], dict[str, Tensor]]:
    """Train the unpartitioned model for the same two steps; return losses and weights."""
    model = model_of(name)
    _begin(model.module)
    optimizer, losses = momentum(model.module.parameters()), list[float]()
    for step in range(2):
        inputs, targets = skip_batch(model, step)
        optimizer.zero_grad()
        loss = model.loss_fn(model.module(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: each.clone() for key, each in model.module.state_dict().items()}


class Sum(nn.Module):
    """Adds what it reads, and scores the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 3)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.score(torch.stack(inputs).sum(0))


def late() -> DagModule:
    """Return a model whose `early` and `late` read one value and write into it; `late` also waits for `slow`."""
    torch.manual_seed(0)
    modules = {
        "stem": nn.Linear(5, 6),
        "slow": nn.Linear(6, 6),
        "late": Overwrite(),
        "early": Overwrite(),
        "head": Sum(),
    }
    feeds = {"stem": ["x"], "slow": ["stem"], "late": ["stem", "slow"], "early": ["stem"], "head": ["late", "early"]}
    return DagModule(modules, inputs=feeds)


class Overwrite(nn.Module):
    """Writes into the first value it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.linear(sum(others, x.relu_()))


LATE: list[StageLine] = [
    (["stem"], [0], 2), (["slow"], [2], 2), (["late"], [1], 2), (["early"], [1], 2), (["head"], [0], 2)
]  # fmt: skip
"""On device 1, `early` runs before `late`, whose message carries the value."""


def late_plan(model: DagModule, schedule: str) -> Plan:
    """Return the plan of `late` on three devices."""
    return in_halves(plan_of(model, {"x": torch.zeros(BATCH, 5)}, LATE, BATCH, schedule), schedule)


def train_late(schedule: str) -> dict[str, Any]:
    """Train `late` for two steps; return losses and gradients."""
    model = late()
    plan = late_plan(model, schedule)
    programs = hand_split(model, plan, {"x": torch.zeros(BATCH, 5)})
    generator = torch.Generator().manual_seed(3)
    x, targets = torch.randn(BATCH, 5, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)
    with Pipeline(plan, programs, cross_entropy, momentum, options=PipelineOptions(debug=True)) as pipeline:
        losses = [pipeline.step({"x": x}, targets) for _ in range(2)]
        gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items() if gradient is not None}
    return {"losses": losses, "gradients": gradients}


class Two(nn.Module):
    """Computes two values from what it reads, the second of them twice as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(5, 6), nn.Linear(5, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.narrow(x), self.wide(x)


class TwoValues(nn.Module):
    """Three heads, of which each reads other values of one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Two()
        self.first, self.second, self.third = nn.Linear(6, 3), nn.Linear(12, 3), nn.Bilinear(6, 12, 3)

    def forward(self, x: Tensor) -> Tensor:
        narrow, wide = self.trunk(x)
        return self.first(narrow) + self.second(wide) + self.third(narrow, wide)


TWO_VALUES = {
    "one stage": [("trunk",), ("first", "second", "third", "output")],
    "two stages": [("trunk",), ("first", "second"), ("third", "output")],
}
"""The stages, of which all but the first are on device 1."""


def two_values_plan(cut: str) -> Plan:
    """Return a plan of `TwoValues` for two devices."""
    graph, cluster = capture(TwoValues(), torch.zeros(BATCH, 5), opaque=["trunk"]), Cluster.preset("local:2")
    stages = [
        HandStage(ops=ops, devices=(min(number, 1),), micro_batch=2) for number, ops in enumerate(TWO_VALUES[cut])
    ]
    return hand_plan(graph, estimate(graph, cluster), cluster, batch_size=BATCH, stages=stages)


def train_two_values() -> dict[str, tuple[float, dict[str, Tensor], float]]:
    """Train one step of each cut. Return losses, gradients, and the bytes that all ranks received."""
    found: dict[str, tuple[float, dict[str, Tensor], float]] = {}
    for cut in TWO_VALUES:
        torch.manual_seed(0)
        model, x, targets = TwoValues(), torch.randn(BATCH, 5), torch.arange(BATCH) % 3
        options = PipelineOptions(debug=True, record=True)
        with Pipeline(two_values_plan(cut), model, cross_entropy, momentum, options=options) as pipeline:
            loss = pipeline.step(x, targets)
            received = sum(span.bytes for span in pipeline.trace().spans if span.kind == "receive")
            gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
        found[cut] = loss, gradients, received
    return found
