"""Forwards that keep values in attributes for their next call: followed ones are named, whole ones keep them."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from tests.support.programs.plain_training import cut_plan


class Remembering(nn.Module):
    """Two layers, between which a subclass reads and changes an attribute.

    Args:
        held: the attribute at first.
    """

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.layer, self.last, self.held = nn.Linear(6, 6), nn.Linear(6, 3), held


class Bank(Remembering):
    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        if self.held is not None:
            found = found + self.held
        self.held = found.detach().mean(0)
        return self.last(found)


class Queue(Remembering):
    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        mean = torch.stack(self.held).mean(0) if self.held else 0.0
        self.held.append(found.detach().mean(0))
        return self.last(found + mean)


class Named(Remembering):
    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x) + self.held.get("mean", 0.0)
        self.held["mean"] = found.detach().mean(0)
        return self.last(found)


class Table(Remembering):
    """Makes a table in its first call."""

    def forward(self, x: Tensor) -> Tensor:
        if self.held is None:
            self.held = torch.arange(6.0)
        return self.last(self.layer(x) + self.held)


class Shown(Remembering):
    """Sets what others may look at, and reads it only afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        self.held = self.layer(x)
        return self.last(self.held)


class Gathered(Remembering):
    """Fills a list that each call begins anew."""

    def forward(self, x: Tensor) -> Tensor:
        self.held = []
        self.held.append(self.layer(x))
        return self.last(self.held[0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "held"), [(Bank, None), (Bank, torch.zeros(6)), (Queue, []), (Named, {})])
def test_what_a_followed_forward_keeps_for_its_next_call_is_named(kind: Any, held: Any) -> None:
    """It was followed as its first call goes, in silence."""
    model = kind(held)
    with pytest.warns(UserWarning, match="the forward of the model itself reads 'held', and keeps other values"):
        graph = gp.capture(model, torch.randn(4, 6))
    assert [op.name for op in graph.ops] == ["layer", "last"]
    assert not isinstance(held, (list, dict)) or not held  # a trace fills copies


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "held"), [(Table, None), (Shown, None), (Gathered, [])])
def test_what_the_next_call_does_not_compute_with_is_not_named(kind: Any, held: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp.capture(kind(held), torch.randn(4, 6))


class Memory(nn.Module):
    """A layer of its own that appends to a list in every call, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.held: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        found = x @ self.weight + (torch.stack(self.held).mean(0) if self.held else 0.0)
        self.held.append(found.detach().mean(0))
        return found


def cross_entropy_steps(step: Callable[[Tensor, Tensor], Any]) -> list[float]:
    torch.manual_seed(2)
    return [float(step(torch.randn(8, 6), torch.randint(3, (8,)))) for _ in range(3)]


@pytest.mark.timeout(60)
def test_a_whole_submodule_keeps_its_values_as_in_plain_pytorch() -> None:
    """The remedy of the warning. A layer with a list was refused: each run of the capture had another list."""
    torch.manual_seed(1)
    model = nn.Sequential(Memory(), nn.Linear(6, 3))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    def plain_step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(plain(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    graph = gp.capture(model, torch.randn(8, 6), whole_batch=["0"])
    plan = cut_plan(graph, batch_size=8, micro_batch=4)
    with gp.Pipeline(plan, model, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1)) as pipeline:
        found = cross_entropy_steps(pipeline.step)
    assert found == pytest.approx(cross_entropy_steps(plain_step), abs=1e-6)
