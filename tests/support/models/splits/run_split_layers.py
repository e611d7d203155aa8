"""Trainings of a model whose linear layer over branches is split: importable functions, for one rank or several."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from run_plans import StageLine, cluster_of, plan_for
from run_replica_syncs import SYNCS
from shared_captures import shared_capture, shared_for
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.graph import split_ops
from graphpipe.model.zoo.blocks import Dense
from graphpipe.planning.settings import SplitChoice
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints

BATCH, STEPS = 12, 4
PARTS = ("head.linear.part0", "head.linear.part1", "head.linear.part2")
CUTS: dict[str, list[StageLine]] = {
    "whole": [(["left", "right"], [0], 4), (["head", "end"], [1], 4)],
    "one": [(["left", "right", *PARTS, "head", "end"], [0], 4)],
    "two": [(["left", PARTS[0], PARTS[1]], [0], 4), (["right", PARTS[2], "head", "end"], [1], 4)],
    "replicas": [(["left", PARTS[0], PARTS[1]], [0, 1], 4), (["right", PARTS[2], "head", "end"], [2], 4)],
}
"""Stages; `whole` does not split the layer. `one` and `two` compute the same micro-batches."""


class Branches(nn.Module):
    """Two branches and the input itself, concatenated for a linear layer: (n, length, 3) -> (n, length, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 6)
        self.head, self.end = Dense(13, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(torch.cat([self.left(x), x, torch.tanh(self.right(x))], dim=-1)))


def model_of(seed: int = 0) -> Branches:
    """Return the model with the weights of a seed."""
    torch.manual_seed(seed)
    return Branches()


def batch(seed: int, length: int = 3, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, length, 3, generator=generator), torch.randn(samples, length, 2, generator=generator)


def adam(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


@cache
def plan_of(cut: str) -> Plan:
    """Return the plan of a cut, or of a file."""
    if cut.endswith(".json"):
        return Plan.load(cut)
    graph = shared_capture(model_of(), batch(0)[0]).graph
    return plan_for(graph if cut == "whole" else split_ops(graph, ["head"]), CUTS[cut], BATCH)


def found_plan(split: SplitChoice) -> Plan:
    """Return the best plan that the search finds on 3 slow devices with slow links."""
    graph = shared_capture(model_of(), batch(0)[0]).graph
    cluster = cluster_of(3)
    link = replace(cluster.intra_node, bandwidth_bytes_per_second=1e6, latency_seconds=0.0)
    kind = replace(cluster.device_types[0], peak_flops_per_second=1e7, memory_bytes_per_second=1e8)
    slow = replace(cluster, device_types=(kind,), intra_node=link)
    return gp.plan(graph, gp.estimate(graph, slow), slow, batch_size=BATCH, schedule="1f1b", split=split)


def build(cut: str, kind: str = "allreduce", seed: int = 0, **options: Any) -> tuple[Pipeline, Branches]:
    """Return a pipeline, and its model."""
    model = model_of(seed)
    captured = shared_for(plan_of(cut), model, batch(0)[0])
    given = PipelineOptions(**SYNCS[kind], clip_norm=0.5, captured=captured, **options)
    return Pipeline(plan_of(cut), model, functional.mse_loss, adam, options=given), model


def train(cut: str, kinds: list[str]) -> dict[str, Any]:
    """Train with samples of several lengths; return the losses, the last gradients here and the state, by engine."""
    found: dict[str, Any] = {}
    for kind in kinds:
        pipeline, model = build(cut, kind)
        with pipeline:
            losses = [pipeline.step(*batch(step, length=3 + step % 2)) for step in range(STEPS)]
            gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
            losses.append(pipeline.evaluate(*batch(9, samples=5))[0] or 0.0)
            pipeline.sync_model()
        found[kind] = {"losses": losses, "gradients": gradients, "state": copy.deepcopy(model.state_dict())}
    return found


def train_plainly() -> dict[str, Any]:
    """Train the same in plain PyTorch."""
    model = model_of()
    optimizer, losses = adam([*model.parameters()]), list[float]()
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, length=3 + step % 2)
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    inputs, targets = batch(9, samples=5)
    losses.append(functional.mse_loss(model(inputs), targets).item())
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {"losses": losses, "gradients": gradients, "state": model.state_dict()}


def train_and_save(cut: str, folder: str, kind: str) -> None:
    """Train two steps, and save."""
    pipeline, _ = build(cut, kind)
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        for step in range(2):
            pipeline.step(*batch(step))
        checkpoints.save()


def resume(cut: str, folder: str, kind: str) -> dict[str, Any]:
    """Resume with a model of other initial weights, and train two more steps."""
    pipeline, model = build(cut, kind, seed=1)
    with pipeline:
        Checkpoints(pipeline, folder).load()
        losses = [pipeline.step(*batch(step)) for step in range(pipeline.steps, STEPS)]
        pipeline.sync_model()
    return {"losses": losses, "state": copy.deepcopy(model.state_dict())}


class Tables(nn.Module):
    """A bag, an embedding and a linear layer, which can be split by outputs: (n, 4) int64 -> (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.rows = nn.EmbeddingBag(900, 6, mode="mean", padding_idx=0), nn.Embedding(900, 5)
        self.wide, self.end = nn.Linear(6, 7), nn.Linear(7 + 5, 2)

    def forward(self, indices: Tensor, first: Tensor) -> Tensor:
        return self.end(torch.cat([torch.tanh(self.wide(self.bag(indices))), self.rows(first)], dim=1))


def tables_batch(seed: int, samples: int = BATCH) -> tuple[dict[str, Tensor], Tensor]:
    """Return indices, and targets."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(900, (samples, 4), generator=generator)
    return {"indices": indices, "first": indices[:, 1]}, torch.randn(samples, 2, generator=generator)


TABLES: list[StageLine] = [
    (["bag.part0", "rows.part0"], [0], 4),
    (["bag.part1", "bag", "wide.part0", "rows.part1", "rows"], [1], 4),
    (["wide.part1", "wide.part2", "wide", "end.part0", "end.part1", "end"], [2], 4),
]
