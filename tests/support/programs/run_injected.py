"""Gradients that a backward adds by itself, on ranks that shard their weights: importable functions of plain values."""

from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp


class Added(torch.autograd.Function):
    """Adds the gradient of a balance loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (scores,) = ctx.saved_tensors
        return gradients[0], torch.full_like(scores, 0.1)


class Balanced(nn.Module):
    def __init__(self, *, added: bool) -> None:
        super().__init__()
        self.gate, self.layer, self.added = nn.Linear(6, 6), nn.Linear(6, 6), added

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        made = self.layer(x) * scores.softmax(-1)
        return Added.apply(made, scores) if self.added else made  # pyright: ignore


def train(engine: str) -> list[str]:
    """Return what a step says with such a backward, and without."""
    said: list[str] = []
    for added in (True, False):
        torch.manual_seed(0)
        model, x, y = nn.Sequential(Balanced(added=added), nn.Linear(6, 3)), torch.randn(8, 6), torch.randint(3, (8,))
        graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:2")
        stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
        plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)
        options = gp.PipelineOptions(engine=engine)
        try:
            with gp.Pipeline(
                plan, model, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1), options=options
            ) as pipe:
                said.append(f"trained {pipe.step(x, y) > pipe.step(x, y)}")
        except gp.InvalidInput as error:
            said.append(str(error))
    return said
