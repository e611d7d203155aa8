"""A first step of a small model, one of whose submodules does something unusual that its capture does not know of."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture_nodes

Mix = Callable[[Tensor], Tensor]
WIDE = 6


class Doing(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix, self.layer = mix, nn.Linear(WIDE, WIDE)

    def forward(self, y: Tensor) -> Tensor:
        return self.layer(self.mix(y))


def model(mix: Mix) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), Doing(mix), nn.Linear(WIDE, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, WIDE, dtype=torch.float64), torch.randint(3, (8,))


@cache
def plain() -> Captured:
    origin = Origin(method="auto", opaque=("2",))
    return capture_nodes(model(lambda y: y * 1.0).double(), batch()[0], origin)


@cache
def cut(at: str, micro_batch: int) -> tuple[gp.Plan, Captured]:
    """Return a plan with two stages, of which the second begins with an operator, and the capture it was made from."""
    captured, cluster = plain(), gp.Cluster.preset("local:2")
    graph = captured.graph
    names = graph.order
    first = names.index(at)
    stages = [
        gp.HandStage(ops=tuple(names[:first]), devices=(0,), micro_batch=micro_batch),
        gp.HandStage(ops=tuple(names[first:]), devices=(1,), micro_batch=micro_batch),
    ]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=8, stages=stages), captured


def step(one: nn.Module, at: str, micro_batch: int = 2, **options: Any) -> None:
    """Train a step, with a capture that knows of no mixture."""
    plan, captured = cut(at, micro_batch)
    made = gp.PipelineOptions(captured=captured, **options)
    with gp.Pipeline(plan, one.double(), functional.cross_entropy, options=made) as pipe:
        pipe.step(*batch())
