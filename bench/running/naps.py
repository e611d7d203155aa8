"""A two-branch model whose layers sleep, so that it takes equally long on one core and on a core per stage.

left  -> l0 -> l1 -+-> join         as a graph, three stages deep
right -> r0 -> r1 -+                as a chain, five: each hands on what it does not use
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.costs import Curve
from graphpipe.costs.op_cost import OpCost
from graphpipe.graph import Edge
from graphpipe.model import DagModule
from graphpipe.run.rehearse.emulated_replica import sleep

SECONDS_PER_SAMPLE = 5e-3
"""Of a layer's forward; its backward takes twice that, half of it for either gradient."""
WIDTH = 64
LAYERS = {"l0": ["left"], "l1": ["l0"], "r0": ["right"], "r1": ["r0"], "join": ["l1", "r1"]}
"""Inputs of each layer."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, seconds_per_sample: float) -> Tensor:
        ctx.seconds = 2 * seconds_per_sample * len(given)
        sleep(ctx.seconds / 2)
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sleep(ctx.seconds)
        return gradients[0].clone(), None


class Nap(nn.Module):
    """A linear layer of the sum of its inputs, which also sleeps if sleeping is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds_per_sample = 0.0

    def forward(self, *given: Tensor) -> Tensor:
        # The sleep comes last: before it stands a weight, so that it has a backward in every layer.
        result = self.linear(torch.stack(given).sum(dim=0))
        return _Sleep.apply(result, self.seconds_per_sample) if self.seconds_per_sample else result


class Hop(nn.Module):
    """A layer of the chain: changes one of two values and hands the other on; the last joins them."""

    def __init__(self, name: str, nap: nn.Module) -> None:
        super().__init__()
        self.name, self.nap = name, nap

    def forward(self, left: Tensor, right: Tensor) -> Any:
        """Return both values, or their join in the last layer."""
        match self.name[0]:
            case "l":
                return self.nap(left), right
            case "r":
                return left, self.nap(right)
            case _:
                return self.nap(left, right)


def two_branches() -> DagModule:
    """Return the model as a graph."""
    torch.manual_seed(0)
    return DagModule({name: Nap() for name in LAYERS}, LAYERS, name="two-branches")


def tire(model: nn.Module) -> None:
    """Let the layers sleep from now on: capture, which runs them on other numbers of samples, need not."""
    for module in model.modules():
        if isinstance(module, Nap):
            module.seconds_per_sample = SECONDS_PER_SAMPLE


def as_chain(graph: gp.Graph) -> gp.Graph:
    """Return the graph of the chain: both values pass from each layer to the next."""
    size = 2 * graph.edges[0].bytes_per_sample
    edges = tuple(Edge(source=one, target=other, bytes_per_sample=size) for one, other in pairwise(LAYERS))
    return replace(graph, name="chain", ops=tuple(graph[name] for name in LAYERS), edges=edges)


def batch(samples: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(0)
    left, right, wanted = (torch.randn(samples, WIDTH, generator=generator) for _ in range(3))
    return {"left": left, "right": right}, wanted


def cluster() -> gp.Cluster:
    """Return a device per layer, because sleeping layers do not need a core."""
    return replace(gp.Cluster.preset(f"local:{len(LAYERS)}"), cores_per_node=None)


def costs(graph: gp.Graph, cluster: gp.Cluster) -> gp.CostTable:
    """Return the costs of the layers, which are their sleeping times."""
    nap = Curve(lines=((0.0, SECONDS_PER_SAMPLE),))
    rows = [
        OpCost(
            op=op.name,
            device_type=device.name,
            forward=nap,
            input_gradient=nap,
            weight_gradient=nap,
            source="imported",
        )
        for op in graph.ops
        for device in cluster.device_types
    ]
    return gp.CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows))
