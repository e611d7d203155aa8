"""A model without data, with every kind of tensor that a rank may have to fill: importable functions for ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from run_plans import cluster_of
from shared_captures import shared_capture
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.capture.capture import Captured
from graphpipe.plans import Plan
from graphpipe.run.initial_weights.own_tensors import named_tensors

BATCH, WORDS, WIDE, LENGTH = 8, 24, 16, 6


class Angles(nn.Module):
    """A table that is in no checkpoint, made by its own code, and an orthogonal weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDE, WIDE))
        self.register_buffer("table", torch.empty(LENGTH, WIDE), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        self.table = torch.outer(torch.arange(LENGTH) + 1.0, torch.arange(WIDE) + 1.0).cos()

    def forward(self, values: Tensor) -> Tensor:
        return (values + self.table) @ self.weight


class Recurrent(nn.Module):
    """A recurrent layer, whose weights have weak references."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDE, WIDE, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.inner(values)[0]


class Norm(nn.Module):
    """Statistics of the batch, which are in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(LENGTH)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)


class Words(nn.Module):
    """Embedding and scores share a weight. Nothing uses `spare`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.angles, self.recurrent, self.norm = Angles(), Recurrent(), Norm()
        self.dense = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE))
        self.score = nn.Linear(WIDE, WORDS, bias=False)
        self.score.weight = self.words.weight
        self.spare = nn.Linear(3, 2)

    def forward(self, words: Tensor) -> Tensor:
        values = self.recurrent(self.angles(self.words(words)))
        return self.score(self.dense(self.norm(values)).mean(1))


def meta_words() -> Words:
    """Return the model on the meta device."""
    with torch.device("meta"):
        return Words()


def words_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return words and targets."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (BATCH, LENGTH), generator=generator)
    return words, torch.randint(WORDS, (BATCH,), generator=generator)


def words_capture() -> Captured:
    """Return the capture of the model."""
    return shared_capture(meta_words(), words_batch()[0])


def words_plan(count: int, degree: int = 1) -> Plan:
    """Return a plan with a chain of stages of about equally many operators, all with the same number of replicas."""
    graph, cluster = words_capture().graph, cluster_of(count * degree)
    names = list(graph.order)
    cuts = [round(number * len(names) / count) for number in range(count + 1)]
    stages = [
        gp.HandStage(
            ops=tuple(names[cuts[number] : cuts[number + 1]]),
            devices=tuple(range(number * degree, (number + 1) * degree)),
            micro_batch=4,
        )
        for number in range(count)
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH, stages=stages)


def train_words(
    count: int, degree: int = 1, steps: int = 2, engine: str = "allreduce", weights: Any = None
) -> dict[str, Any]:
    """Train a few steps; return the initial weights that this rank had, the losses and all weights at the end."""
    model = meta_words()
    options = gp.PipelineOptions(seed=3, engine=engine, initial_weights=weights, captured=words_capture())
    with gp.Pipeline(words_plan(count, degree), model, nn.functional.cross_entropy, adam, options=options) as pipeline:
        pipeline.gather_weights()
        initial = {name: each.detach().clone() for each, name in named_tensors(model) if not each.is_meta}
        losses = [pipeline.step(*words_batch(step)) for step in range(steps)]
        pipeline.sync_model()
    return {"initial": initial, "losses": losses, "state": dict(model.state_dict())}


def adam(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer."""
    return torch.optim.AdamW(parameters, lr=0.01)
