"""Submodules that hand tensors to others through attributes, and not as results."""

from typing import Any

import pytest
import torch
from checked_model import checked, cut_everywhere, samples
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.hidden.attribute_uses import attribute_uses

pytestmark = pytest.mark.timeout(120)


class Reversible(nn.Module):
    """Reversible instance normalization (Kim et al., ICLR 2022), as libraries of time series write it."""

    def __init__(self, start: Any = None) -> None:
        super().__init__()
        self.scale, self.mean = nn.Parameter(torch.rand(4) + 1), start

    def forward(self, x: Tensor, mode: str) -> Tensor:
        if mode == "norm":
            self._look(x)
            return (x - self.mean) * self.scale
        return x / self.scale + self.mean

    def _look(self, x: Tensor) -> None:
        self.mean = x.mean(1, keepdim=True)


class Series(nn.Module):
    """Undoes its normalization at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = Reversible(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.other(torch.tanh(self.one(self.norm(x, "norm")))), "denorm")


class Expert(nn.Module):
    """Keeps a loss of its own."""

    def __init__(self, losses: list[Tensor]) -> None:
        super().__init__()
        self.layer, self.losses, self.loss = nn.Linear(4, 4), losses, 0.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x))
        self.loss = hidden.square().mean(1)
        self.losses.append(hidden.mean(1))
        return hidden


class Experts(nn.Module):
    """Adds up what its parts keep, in an attribute of each and in a list of all."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = list[Tensor]()
        self.parts, self.head = nn.ModuleList(Expert(self.losses) for _ in range(2)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.losses.clear()
        for part in self.parts:
            x = part(x)
        losses: list[Any] = [*self.losses, *(part.loss for part in self.parts)]
        return self.head(x) + torch.stack(losses).sum(0)[:, None]


class Reader(nn.Module):
    """Reads what another submodule keeps."""

    def __init__(self, other: Expert) -> None:
        super().__init__()
        self.other, self.layer = [other], nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.other[0].losses[-1][:, None])


class Reading(nn.Module):
    """A skip connection past the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.middle = Expert([]), nn.Linear(4, 4)
        self.reader = Reader(self.part)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.middle(self.part(x)))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("kind", [Series, Experts, Reading])
def test_what_a_submodule_keeps_reaches_its_reader(kind: type[nn.Module], called: bool) -> None:
    # The first was refused. The losses of the second were left out without a word: 0.0, and those of an empty list.
    model, (inputs, _) = kind(), samples()
    if called:  # then the attributes hold constants
        model(inputs)
    found = checked(model, cut_everywhere(model, inputs))
    assert found.equal, str(found)


class Table(nn.Module):
    """Keeps a table, as positions do, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table, self.calls = nn.Linear(4, 4), None, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        if self.table is None:
            self.table = torch.arange(4.0)
        return self.layer(x + self.table)


def test_a_table_that_each_stage_can_compute_stays_inside() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = Table(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(self.table(x)))

    assert gp.capture(Tables(), samples()[0], opaque=["table"]).order == gp.capture(Tables(), samples()[0]).order


def test_stores_are_of_the_module_itself_or_of_others() -> None:
    class Stores(nn.Module):
        def forward(self, x: Any) -> Any:
            self.here = x
            x.there = self.here
            x.size = ()
            return x

    uses = attribute_uses(Stores)
    assert (uses.own, uses.stored) == ({"here"}, {"here", "there", "size"})
