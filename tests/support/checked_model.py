"""A small model whose forward does something that its captured program lacks, as if no capture knew of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.equivalence.equivalence import Equivalence
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture_nodes

Middle = Callable[["Model", Tensor], Tensor]
WIDE = 4


def plainly(model: "Model", hidden: Tensor) -> Tensor:
    """The middle of the forward as the operators say it."""
    return model.middle(hidden)


class Model(nn.Module):
    """A model with a middle of its own."""

    def __init__(self, middle: Middle = plainly) -> None:
        super().__init__()
        self.does = middle
        self.first, self.middle, self.last = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(2 * WIDE, 3)
        self.frozen = nn.Linear(WIDE, WIDE).requires_grad_(False)
        self.register_buffer("scale", torch.ones(WIDE))

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        return self.last(torch.cat([self.does(self, hidden), self.frozen(hidden) * self.scale], 1))


@dataclass(frozen=True, slots=True)
class Cut:
    """A plan with a stage for every operator of a captured model."""

    plan: gp.Plan
    captured: Captured


def cut_everywhere(model: nn.Module, inputs: Any, *, batch_size: int = 8, micro_batch: int = 2, **options: Any) -> Cut:
    """Return a plan that cuts a model between all its operators."""
    chosen: dict[str, Any] = {name: tuple(value) for name, value in options.items()}
    captured = capture_nodes(model, inputs, Origin(method="auto", **chosen))
    graph = captured.graph
    cluster = gp.Cluster.preset(f"local:{len(graph.ops)}")
    stages = [gp.HandStage(ops=(name,), devices=(n,), micro_batch=micro_batch) for n, name in enumerate(graph.order)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch_size, stages=stages)
    return Cut(plan, captured)


def samples(count: int = 8) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of `Model`."""
    draw = torch.Generator().manual_seed(3)
    return torch.randn(count, WIDE, generator=draw), torch.randint(3, (count,), generator=draw)


def checked(model: nn.Module, cut: Cut, loss_fn: Any = nn.functional.cross_entropy) -> Equivalence:
    """Check a model against a captured program, which may be that of another model with the same parameters."""
    inputs, targets = samples()
    return gp.check(cut.plan, model, loss_fn, inputs, targets, captured=cut.captured)


def kinds(found: Equivalence) -> set[str]:
    """Return the kinds of all differences."""
    return {each.kind for each in found.differences}


def names(found: Equivalence, kind: str) -> Sequence[str]:
    """Return the names of the differences of a kind, in order."""
    return [each.name for each in found.differences if each.kind == kind]
