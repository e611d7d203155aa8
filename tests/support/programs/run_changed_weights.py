"""A user's changes of weights between steps: importable functions of plain values, for one process or several ranks."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from shared_captures import shared_capture, shared_for
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.run.stage.losses.divided_forward import only_named

LOSS = nn.functional.cross_entropy


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x) + self.shift)


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Shifted(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6).double(), torch.randint(3, (8,))) for _ in range(3)]


@cache
def plan_of(kind: str) -> gp.Plan:
    graph, cluster = shared_capture(model_of(), batches()[0][0]).graph, gp.Cluster.preset("local:2")
    names = [op.name for op in graph.ops]
    options: dict[str, Any] = {"split": ["1:2"]} if kind == "split" else {}
    stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
    if kind in ("split", "cut"):
        parts = (("0", "1.part0"), ("1.part1", "1", "3")) if kind == "split" else (names[:-1], names[-1:])
        stages = [gp.HandStage(ops=tuple(each), devices=(at,), micro_batch=4) for at, each in enumerate(parts)]
    if kind == "stash":
        options = {"weights": "stash"}
        stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=8)]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages, **options)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def clamp(model: nn.Module) -> None:
    for each in model.parameters():
        each.clamp_(-0.1, 0.1)


def clamp_data(model: nn.Module) -> None:
    for each in model.parameters():
        each.data.clamp_(-0.1, 0.1)


def load(model: nn.Module) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model_of().state_dict().items()})


def shift(model: nn.Module) -> None:
    model.get_buffer("0.shift").fill_(0.3)


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "clamp_": clamp,
    "data.clamp_": clamp_data,
    "load_state_dict": load,
    "buffer": shift,
}


@torch.no_grad()
def change(name: str, model: nn.Module) -> None:
    CHANGES[name](model)


def in_plain_pytorch(name: str) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses, one of them of an evaluation after the change, and the weights."""
    model, losses = model_of(), []
    optimizer = sgd(model.parameters())
    for number, (x, y) in enumerate(batches()):
        if number == 1:
            change(name, model)
            losses.append(LOSS(model(x), y).item())
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def by_pipeline(kind: str, engine: str, name: str, gathered: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Return the same of a pipeline, whose model is changed after `sync_model`, or without it."""
    model, losses = model_of(), []
    plan = plan_of(kind)
    options = gp.PipelineOptions(engine=engine, captured=shared_for(plan, model_of(), batches()[0][0]))
    with only_named(), gp.Pipeline(plan, model, LOSS, sgd, options=options) as pipe:
        for number, (x, y) in enumerate(batches()):
            if number == 1:
                if gathered:
                    pipe.sync_model()
                change(name, model)
                loss, _ = pipe.evaluate(x, y)
                assert loss is not None
                losses.append(loss)
            losses.append(pipe.step(x, y))
        pipe.sync_model()
        return losses, copy.deepcopy(model.state_dict())


def on_ranks(kinds: Sequence[tuple[str, str]], gathered: bool) -> dict[str, Any]:
    """Return what each kind and change gives on this rank: losses and weights, or the error."""
    found: dict[str, Any] = {}
    for kind, engine in kinds:
        for name in CHANGES:
            try:
                found[f"{kind} {engine} {name}"] = by_pipeline(kind, engine, name, gathered=gathered)
            except gp.InvalidInput as error:
                found[f"{kind} {engine} {name}"] = str(error)
    return found
