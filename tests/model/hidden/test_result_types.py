"""Submodules that return tensors in dataclasses and in other objects."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checked_model import checked, cut_everywhere
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.hidden.result_types import hides_tensors, register_dataclasses
from graphpipe.model.torch_private import flatten

pytestmark = pytest.mark.timeout(120)


@dataclass
class Named:
    """What many own models return."""

    hidden: Tensor
    extra: Any = None


class Box:
    """An object of its own."""

    __slots__ = ("hidden",)

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class Block(nn.Module):
    """Returns its result in an object."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.made = made
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.made(self.other(torch.tanh(self.one(x))))


class Model(nn.Module):
    """Blocks, of which each result is read by name."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(made) for _ in range(3)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            found = block(x)
            x = found.hidden if found.extra is None else found.hidden + found.extra["twice"].hidden
        return self.head(x)


WAYS = {
    "dataclass": lambda hidden: Named(hidden),
    "dataclass in a dict in a dataclass": lambda hidden: Named(hidden, {"twice": Named(2 * hidden)}),
    "namespace": lambda hidden: SimpleNamespace(hidden=hidden, extra=None),
    "dict of boxes": lambda hidden: SimpleNamespace(hidden=hidden, extra={"twice": Box(2 * hidden)}),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_layer_is_lost_behind_an_object_that_a_block_returns(way: str) -> None:
    # Once, what was inside was taken for a constant: the graph began at the head, without a word.
    model = Model(WAYS[way])
    cut = cut_everywhere(model, torch.zeros(8, 4))
    assert {name for op in cut.plan.graph.ops for name in op.parameters} == {
        name for name, _ in model.named_parameters()
    }
    found = checked(model, cut)
    assert found.equal, str(found)


def test_blocks_that_return_dataclasses_stay_whole() -> None:
    assert gp.capture(Model(WAYS["dataclass"]), torch.zeros(8, 4)).order == (*(f"blocks.{n}" for n in range(3)), "head")


def test_a_block_that_has_to_stay_whole_and_hides_its_result_is_refused() -> None:
    opaque = ["blocks.0", "blocks.1", "blocks.2"]
    with pytest.raises(gp.InvalidInput, match=r"forward of 'blocks.0' returns a SimpleNamespace, .* or a dataclass"):
        gp.capture(Model(WAYS["namespace"]), torch.zeros(8, 4), opaque=opaque)


class Undoing(nn.Module):
    """Returns a function that reads tensors of its forward, as reversible normalization does."""

    def __init__(self, *, partially: bool) -> None:
        super().__init__()
        self.scale, self.partially = nn.Linear(4, 4), partially

    def forward(self, x: Tensor) -> Any:
        mean = x.mean(0)
        if self.partially:
            return self.scale(x - mean), partial(torch.add, mean)
        return self.scale(x - mean), lambda changed: changed + mean


class Undone(nn.Module):
    """Calls such a function after its layers."""

    def __init__(self, *, partially: bool) -> None:
        super().__init__()
        self.norm, self.layer, self.head = Undoing(partially=partially), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        changed, undo = self.norm(x)
        return self.head(undo(torch.tanh(self.layer(changed))))


@pytest.mark.parametrize("partially", [False, True])
def test_a_function_that_a_block_returns_hides_tensors(partially: bool) -> None:
    # The mean was a constant of the capture.
    graph = gp.capture(Undone(partially=partially), torch.randn(8, 4))
    assert "norm.scale" in graph.order, graph.order


class Private:
    """An object whose only slot has another name outside of its class."""

    __slots__ = ("__inside",)

    def __init__(self, inside: Tensor) -> None:
        self.__inside = inside


@dataclass
class Computed:
    """Has a tensor that cannot be given to it."""

    hidden: Tensor
    square: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.square = self.hidden**2


def test_a_dataclass_that_cannot_be_built_again_is_left_alone() -> None:
    value = [Computed(torch.ones(2)), SimpleNamespace(inside=Box(torch.ones(2))), Named]
    leaves = flatten(value)[0]
    assert not register_dataclasses(leaves)
    assert [hides_tensors(leaf) for leaf in leaves] == [True, True, False]
    assert hides_tensors(Private(torch.ones(2)))
    assert all(hides_tensors(each) for each in (torch.ones(2).add, Box(torch.ones(2)).__init__))
    assert not any(hides_tensors(each) for each in (max, Box, flatten))
    assert not hides_tensors(torch.ones(2))
    assert not hides_tensors(SimpleNamespace(layer=nn.Linear(2, 2), text="a", numbers=[1, 2]))


class Direct(nn.Module):
    """A model whose block is in no list."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(WAYS["namespace"]), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).hidden)


def test_a_block_of_the_model_itself_that_hides_its_result_is_followed() -> None:
    cut = cut_everywhere(Direct(), torch.zeros(8, 4))
    assert cut.plan.graph.order == ("block.one", "block.other", "head")
    assert checked(Direct(), cut).equal
