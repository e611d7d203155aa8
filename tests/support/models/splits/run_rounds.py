"""Training with gradients on other devices than their forwards, beside the reference of explicit versions."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Literal

from run_plans import cluster_of
from run_versions import BATCH, OPTIMIZERS, SIZE, Reference, batch_of, loss_fn, model_of
from torch import nn

from graphpipe.costs import CostModel
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture, capture_nodes
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.rounds.layer_plan import layer_plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask, LayerTasks
from graphpipe.schedule.gradient_tasks.rounds import Rounds

Weights = Literal["flush", "stash"]


@cache
def captured_of(kind: str) -> Captured:
    """Return the capture of a model of `run_versions`, whose four submodules are its operators."""
    return capture_nodes(model_of(kind), batch_of(0)[0], Origin(method="auto", opaque=tuple("abcd")))


def tasks_of(kind: str, devices: int) -> LayerTasks:
    """Return the tasks of its submodules as layers."""
    graph, cluster = captured_of(kind).graph, cluster_of(devices)
    costs = CostModel.of(graph, estimate(graph, cluster), cluster)
    layers = [tuple(op for op in graph.order if op.split(".")[0] == name) for name in "abcd"]
    return LayerTasks.of(costs, layers, SIZE, BATCH)


def rounds_of(kind: str, devices: int, weights: Weights, seed: int = 0) -> Rounds:
    """Return rounds of a model of `run_versions`, whose tasks are on random devices, all of them in use."""
    work, random = tasks_of(kind, devices), Random(seed)
    while True:
        placed = {task: random.randrange(devices) for task in work.tasks}
        if len({*placed.values()}) == devices:
            return Rounds(work=work, device_of=placed, weights=weights)


def rounds_on(
    model: nn.Module, names: Sequence[str], forwards: Sequence[int], gradients: Sequence[int]
) -> tuple[Rounds, nn.Module]:
    """Return rounds of the submodules of any model of `batch_of`, on these devices, without a flush, and the model."""
    graph = capture(model, batch_of(0)[0]["x"], opaque=[*names])
    cluster = cluster_of(1 + max(*forwards, *gradients))
    costs = CostModel.of(graph, estimate(graph, cluster), cluster)
    work = LayerTasks.of(costs, [(op,) for op in graph.order], SIZE, BATCH)
    assert len(graph.order) == len(names)
    device_of = {task: (forwards if task.kind == "F" else gradients)[task.layer] for task in work.tasks}
    return Rounds(work=work, device_of=device_of), model


def train_layers(kind: str, devices: int) -> dict[str, Any]:
    """Train the layers of `train_rounds` as stages, with whole backwards; return the same."""
    model, losses = model_of(kind), list[float]()
    plan = layer_plan(rounds_of(kind, devices, "flush"))
    options = PipelineOptions(captured=captured_of(kind))
    with Pipeline(plan, model, loss_fn, OPTIMIZERS["adam"], options=options) as pipeline:
        for _ in range(7):
            losses.append(pipeline.step(*batch_of(len(losses))))
    return {"losses": losses, "weights": {name: each.clone() for name, each in model.state_dict().items()}}


def train_rounds(
    kind: str, devices: int, weights: Weights, optimizer: str = "adam", seed: int = 0, **options: Any
) -> dict[str, Any]:
    """Train in segments of 5 and 2 mini-batches; return the losses and the weights."""
    model, losses = model_of(kind), list[float]()
    rounds = rounds_of(kind, devices, weights, seed)
    given = PipelineOptions(captured=captured_of(kind), **options)
    with Pipeline(rounds, model, loss_fn, OPTIMIZERS[optimizer], options=given) as pipeline:
        for length in (5, 2):
            losses += pipeline.segment([batch_of(len(losses) + step) for step in range(length)])
        pipeline.sync_model()
    return {"losses": losses, "weights": {name: each.clone() for name, each in model.state_dict().items()}}


def train_rounds_cases(cases: Sequence[tuple[str, int, Weights, str, int]]) -> list[dict[str, Any]]:
    """Train each (model, devices, weights, optimizer, seed) on the present ranks."""
    return [train_rounds(*case) for case in cases]


class RoundsReference(Reference):
    """The reference, whose layers read the versions of some rounds."""

    rounds: Rounds

    def version(self, stage: int, micro_batch: int) -> int:
        """The updates that are `lag(W) - lag(F)` rounds before."""
        each = BATCH // SIZE
        if self.policy == "flush":
            return micro_batch // each
        lag = self.rounds.lag
        return max(0, micro_batch - lag[LayerTask("W", stage)] + lag[LayerTask("F", stage)]) // each


def train_rounds_reference(
    kind: str, devices: int, weights: Weights, optimizer: str = "adam", seed: int = 0
) -> dict[str, Any]:
    """Return what `train_rounds` must return, bit for bit."""
    model = model_of(kind)
    reference = RoundsReference(model=model, degrees=[1] * 4, optimizer=optimizer, policy=weights)
    reference.rounds = rounds_of(kind, devices, weights, seed)
    losses: list[float] = []
    for length in (5, 2):
        losses += reference.segment([batch_of(len(losses) + step) for step in range(length)])
    return {"losses": losses, "weights": {name: each.detach() for name, each in model.state_dict().items()}}
