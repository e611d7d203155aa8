"""An operator can be split where a linear layer alone reads a concatenation, and nothing else reads its weight."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import graphpipe as gp
from graphpipe.graph import splittable


class Joined(nn.Module):
    """Two branches and a model input, concatenated for a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 2)
        self.head, self.end = nn.Linear(9, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(torch.cat([self.left(x), x, self.right(x)], dim=1)))


class Twice(Joined):
    def forward(self, x: Tensor) -> Tensor:
        branches = [self.left(x), x, self.right(x)]
        return self.end(self.head(torch.cat(branches, 1)) + self.head(torch.cat(branches[::-1], 1)))


class ReadWeight(Joined):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.head.weight.sum()


class OtherReader(Joined):
    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.left(x), x, self.right(x)], dim=1)
        return self.end(self.head(joined)) + joined.sum(1, keepdim=True)


class AlongSequence(Joined):
    def __init__(self) -> None:
        super().__init__()
        self.right, self.head = nn.Linear(3, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(torch.cat([self.left(x)[:, None], self.right(x)[:, None]], dim=1)))


class Tied(Joined):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(9, 5)
        self.other.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.other(torch.cat([x, x, x], 1)).sum(1, keepdim=True)


class Block(nn.Module):
    """A linear layer, and what follows it, as one opaque module."""

    def __init__(self, after: Callable[["Block", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(9, 5), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, x, self.linear(x))


def blocked(after: Callable[[Block, Tensor, Tensor], Tensor]) -> nn.Module:
    model = Joined()
    model.head = Block(after)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def changed(change: Callable[[Joined], object]) -> nn.Module:
    model = Joined()
    change(model)
    return model


def splits(model: nn.Module, **options: tuple[str, ...]) -> list[str]:
    graph = gp.capture(model, {"x": torch.zeros(2, 3)}, **options)  # pyright: ignore[reportArgumentType]
    return [each.layer for each in splittable(graph) if each.by == "inputs"]


def test_the_branches_of_a_linear_layer_are_found() -> None:
    (split,) = (each for each in splittable(gp.capture(Joined(), {"x": torch.zeros(2, 3)})) if each.by == "inputs")
    assert (split.layer, split.is_called, split.weight, split.bias) == ("head", True, "head.weight", "head.bias")
    assert [(each.source, each.model_input, each.start, each.stop) for each in split.branches] == [
        ("left", None, 0, 4),
        (None, "x", 4, 7),
        ("right", None, 7, 9),
    ]
    assert (split.weight_bytes, split.bias_bytes) == (9 * 5 * 4, 5 * 4)
    assert (split.flops_per_sample, split.output_bytes_per_sample) == (2 * 9 * 5, 5 * 4)


def test_a_layer_inside_a_block_is_found() -> None:
    assert splits(blocked(lambda _, __, product: torch.relu(product))) == ["head.linear"]


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "the layer is called twice": Twice,
    "the weight is read elsewhere": ReadWeight,
    "the concatenation is read elsewhere": OtherReader,
    "another dimension is concatenated": AlongSequence,
    "a block reads its input elsewhere": lambda: blocked(lambda _, x, product: product + x.sum(1, keepdim=True)),
    "a block reads the weight": lambda: blocked(lambda block, _, product: product + block.linear.weight.sum()),
    "a block behaves differently in evaluation": lambda: blocked(
        lambda block, _, product: product if block.training else product * 2
    ),
    "a forward hook": lambda: changed(lambda model: model.head.register_forward_hook(lambda *_: None)),
    "a hook before the forward": lambda: changed(lambda model: model.head.register_forward_pre_hook(lambda *_: None)),
    "a hook on the backward": lambda: changed(lambda model: model.head.register_full_backward_hook(lambda *_: None)),
    "weight normalisation": lambda: changed(lambda model: parametrizations.weight_norm(model.head)),
    "a tied weight": Tied,
    "a frozen weight and a trained bias": lambda: changed(lambda model: model.head.weight.requires_grad_(False)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_split_is_left_alone(why: str) -> None:
    assert splits(REFUSED[why]()) == []


def test_a_layer_that_needs_the_whole_mini_batch_is_left_alone() -> None:
    assert splits(Joined(), whole_batch=("head",)) == []


def test_a_frozen_layer_can_be_split() -> None:
    assert splits(changed(lambda model: model.head.requires_grad_(False))) == ["head"]
