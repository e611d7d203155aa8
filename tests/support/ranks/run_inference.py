"""Ranks in the tests of inference."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.run.inference.inference_pipeline import InferencePipeline

BAD = -7.0


class Checked(nn.Module):
    """A layer that refuses samples whose first value is `BAD`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return refuse(self.layer(x), x)


@torch.library.custom_op("graphpipe_tests::refuse", mutates_args=())
def refuse(x: Tensor, marks: Tensor) -> Tensor:
    """Return `x`, unless a sample is marked."""
    if (marks[:, 0] == BAD).any():
        raise ValueError("a marked sample")
    return x.clone()


@refuse.register_fake
def _(x: Tensor, marks: Tensor) -> Tensor:
    return torch.empty_like(x)


def model() -> nn.Module:
    """Return four layers with dropout in between, the same on every rank. The first refuses marked samples."""
    torch.manual_seed(3)
    layers = [Checked(), nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6)), nn.Linear(6, 6), nn.Linear(6, 5)]
    return nn.Sequential(*layers)


def plan(module: nn.Module, devices: int) -> gp.Plan:
    """Return a plan with a stage on every device, micro-batches of 4 and windows of 8."""
    graph = gp.capture(module, (torch.zeros(4, 6),))
    cluster = gp.Cluster.preset(f"local:{devices}")
    order = graph.order
    cuts = [round(n * len(order) / devices) for n in range(devices + 1)]
    stages = [gp.HandStage(ops=order[cuts[n] : cuts[n + 1]], devices=(n,), micro_batch=4) for n in range(devices)]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages, inference=True)


def requests(sizes: Sequence[int]) -> list[Tensor]:
    """Return requests of these numbers of samples."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, 6, generator=generator) for size in sizes]


def answer(sizes: Sequence[int], devices: int, marked: Sequence[tuple[int, int]] = ()) -> list[object] | None:
    """Answer requests, some samples of which (request, sample) are marked; None on ranks that do not answer."""
    module, given = model(), requests(sizes)
    for request, sample in marked:
        given[request][sample, 0] = BAD
    with InferencePipeline(plan(module, devices), module) as pipeline:
        found = list(pipeline.map(given))
        if not pipeline.answers:
            assert found == [None] * len(given)
            return None
    return [[each.outputs, [(it.sample, it.reason) for it in each.failed]] for each in found if each is not None]


def answer_from(sizes: Sequence[int], devices: int, weights: str) -> tuple[list[Tensor], list[str]]:
    """Answer with a model without data and the weights of a file; return the answers and what this rank held."""
    options = gp.PipelineOptions(initial_weights=gp.Weights.read(weights))
    built = without_data(model)
    with InferencePipeline(plan(built, devices), built, options=options) as pipeline:
        found = [each.outputs for each in pipeline.map(requests(sizes)) if each is not None]
    held = [name for name, each in built.named_parameters() if not each.is_meta]
    return [each for each in found if each is not None], held
