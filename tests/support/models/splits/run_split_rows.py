"""Trainings of a wide & deep model whose tables are split by rows: importable functions, for one rank or several."""

import copy
from functools import cache
from typing import Any

import torch
from run_plans import StageLine, plan_for
from run_split_layers import adam
from shared_captures import shared_capture
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.graph import split_ops
from graphpipe.plans import Plan
from graphpipe.run import Pipeline
from graphpipe.run.checkpoint.checkpoints import Checkpoints

BATCH, STEPS, ROWS = 12, 4, 900
CUTS: dict[str, tuple[list[str], list[StageLine]]] = {
    "whole": ([], [(["wide", "bag", "deep", "output"], [0], 4)]),
    "one": (["wide:rows3", "bag:rows2"], [(["wide.*", "wide", "bag.*", "bag", "deep", "output"], [0], 4)]),
    "two": (
        ["wide:rows3", "bag:rows2"],
        [(["wide.part0", "wide.part1", "bag.part0"], [0], 4), (["wide.part2", "wide", "bag.part1", "*"], [1], 4)],
    ),
    "others": (
        ["wide:rows2", "bag:3"],
        [(["wide.*", "wide", "bag.part0"], [0], 4), (["bag.*", "bag", "deep", "output"], [0], 4)],
    ),
}
"""What is split, and the stages. `one` and `two` split the same, `others` a table by other rows and one by columns."""


class WideAndDeep(nn.Module):
    """A weight for every value of three fields, and a bag of two of them for a layer: (n, 3) int64 -> (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.bag = nn.Embedding(ROWS, 1, padding_idx=7), nn.EmbeddingBag(ROWS, 3, padding_idx=5)
        self.deep = nn.Linear(3, 1)
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor([0, 300, 600]))

    def forward(self, fields: Tensor) -> Tensor:
        return self.wide(fields + self.offsets).sum(1) + torch.tanh(self.deep(self.bag(fields[:, 1:])))


def model_of(seed: int = 0) -> WideAndDeep:
    """Return the model with the weights of a seed."""
    torch.manual_seed(seed)
    return WideAndDeep()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Return indices, some of them of padding, and targets."""
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randint(300, (BATCH, 3), generator=generator)
    fields[0], fields[1, 1] = torch.tensor([7, 5, 5]), 5
    return fields, torch.randn(BATCH, 1, generator=generator)


@cache
def plan_of(cut: str) -> Plan:
    """Return the plan of a cut."""
    names, stages = CUTS[cut]
    graph = split_ops(shared_capture(model_of(), batch(0)[0]).graph, names)
    left = [*graph.order]
    lines: list[StageLine] = []
    for patterns, devices, micro_batch in stages:
        ops = [op for op in left if any(_matches(op, pattern) for pattern in patterns)]
        left = [op for op in left if op not in ops]
        lines.append((ops, devices, micro_batch))
    return plan_for(graph, lines, BATCH)


def _matches(op: str, pattern: str) -> bool:
    return op == pattern or (pattern.endswith("*") and op.startswith(pattern[:-1]))


def train(cut: str, folder: str) -> dict[str, Any]:
    """Train, and save the second step in a folder; return the losses, the last gradients and the state."""
    model = model_of()
    with Pipeline(plan_of(cut), model, functional.mse_loss, adam) as pipeline:
        with Checkpoints(pipeline, folder) as checkpoints:
            losses = [pipeline.step(*batch(step)) for step in range(2)]
            checkpoints.save()
        losses += [pipeline.step(*batch(step)) for step in range(2, STEPS)]
        gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
        pipeline.sync_model()
    return {"losses": losses, "gradients": gradients, "state": copy.deepcopy(model.state_dict())}


def resume(cut: str, folder: str) -> dict[str, Any]:
    """Resume with a model of other initial weights, and train the remaining steps."""
    model = model_of(seed=1)
    with Pipeline(plan_of(cut), model, functional.mse_loss, adam) as pipeline:
        Checkpoints(pipeline, folder).load()
        losses = [pipeline.step(*batch(step)) for step in range(pipeline.steps, STEPS)]
    return {"losses": losses, "state": model.state_dict()}


def train_plainly() -> dict[str, Any]:
    """Train the same in plain PyTorch."""
    model, losses = model_of(), list[float]()
    optimizer = adam([*model.parameters()])
    for step in range(STEPS):
        optimizer.zero_grad()
        fields, targets = batch(step)
        loss = functional.mse_loss(model(fields), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {"losses": losses, "gradients": gradients, "state": model.state_dict()}
