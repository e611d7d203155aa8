"""A model with constants and perhaps sparse gradients: importable functions, for one rank and for several."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from run_models import cross_entropy
from run_plans import plan_for
from shared_captures import captured_of, shared_capture
from torch import Tensor, nn

from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions

BATCH = 8


class Offset(nn.Module):
    """An opaque submodule with a plain tensor and a literal of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.tensor([0.5, -0.5, 0.0, 1.0])
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * self.weight - torch.tensor(0.25)


class Constants(nn.Module):
    """Literals and plain tensors, in the root's forward and in a submodule."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 4, sparse=sparse)
        self.middle = nn.Linear(4, 4)
        self.offset = Offset()
        self.head = nn.Linear(4, 3)
        self.plain = torch.arange(4.0) / 8
        self.known: Tensor
        self.register_buffer("known", torch.ones(4))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens).mean(1) * torch.tensor([1.0, 2.0, 0.5, 1.0]) + self.plain
        hidden = self.offset(torch.tanh(self.middle(hidden)) * self.known)
        return self.head(hidden) + torch.tensor([0.1, 0.2, 0.3])


class Taught(nn.Module):
    """A frozen branch, a trained one and a block with gradients, all inside `torch.no_grad()` in the root's forward.

    Args:
        in_place: `inside` the block, or `outside` of it, an operation is in place.
    """

    def __init__(self, in_place: str) -> None:
        super().__init__()
        self.in_place = in_place
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)
        self.student = nn.Linear(4, 4)
        self.rate = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.student(x)
        with torch.no_grad():
            aim = self.teacher(x) + self.student(x).relu() / x.shape[0]
            with torch.enable_grad():
                rate = self.rate(hidden) * aim
            scale = (rate + hidden).exp()
            if self.in_place == "inside":
                scale.mul_(0.5)
        if self.in_place == "outside":
            rate = (rate * 2).add_(1.0)
        return self.head(hidden - aim + rate * scale)


class Averaged(nn.Module):
    """The root's own forward updates an average and a count, in training only, and another average always."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.mean: Tensor
        self.count: Tensor
        self.seen: Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x) * (1 - self.mean))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
            self.count += 1
        scaled = self.second(hidden) * self.seen  # after its update, it would mix the samples of this micro-batch
        self.seen = 0.5 * self.seen + 0.5 * hidden.detach().amax(0)
        return self.head(scaled)


def batch(step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs, in which tokens repeat, and the targets of a step."""
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 6, (BATCH, 5), generator=random)
    return {"tokens": tokens}, torch.randint(0, 3, (BATCH,), generator=random)


def model_of(*, sparse: bool = False) -> Constants:
    """Return the model, always with the same weights."""
    torch.manual_seed(0)
    return Constants(sparse=sparse)


@cache
def plan(embed: tuple[int, ...], recompute: str, *, sparse: bool) -> Plan:
    """Return a plan with the embedding on the given devices, and everything else on both of two devices."""
    graph = shared_capture(model_of(sparse=sparse), batch(0)[0], ["offset"]).graph
    first, *rest = (op.name for op in graph.ops)
    made = plan_for(graph, [([first], embed, 4), (rest, (0, 1), 4)], BATCH)
    return replace(made, stages=tuple(replace(stage, recompute=recompute) for stage in made.stages))


def train(
    kinds: list[str], embed: tuple[int, ...], recompute: str = "none", *, sparse: bool = False, **options: Any
) -> dict[str, tuple[list[float], float | None, dict[str, Tensor]]]:
    """Train with each engine; return the losses, the loss of an evaluation, and the state."""
    found: dict[str, tuple[list[float], float | None, dict[str, Tensor]]] = {}
    for kind in kinds:
        model = model_of(sparse=sparse)
        cut = plan(embed, recompute, sparse=sparse)
        given = PipelineOptions(engine=kind, captured=captured_of(cut), **options)
        with Pipeline(cut, model, cross_entropy, sgd, options=given) as pipeline:
            losses = [pipeline.step(*batch(step)) for step in range(3)]
            evaluation, _ = pipeline.evaluate(*batch(3))
            pipeline.sync_model()
        found[kind] = losses, evaluation, {name: each.clone() for name, each in model.state_dict().items()}
    return found


def train_both(kinds: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train without and with sparse gradients, which only a stage with one replica may have on several ranks."""
    return train(kinds, (0, 1)), train(kinds, (0,), sparse=True)


def train_unpartitioned(*, sparse: bool = False) -> tuple[list[float], float, dict[str, Tensor]]:
    """Train in plain PyTorch; return the same."""
    model = model_of(sparse=sparse)
    optimizer = sgd(model.parameters())
    losses: list[float] = []
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    inputs, targets = batch(3)
    return losses, cross_entropy(model(**inputs), targets).item(), dict(model.state_dict())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer that takes dense and sparse gradients."""
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
