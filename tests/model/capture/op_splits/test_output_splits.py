"""A linear layer or an embedding can be split by outputs if nothing else sees the whole of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.graph import splittable

ROWS = 900


class Look(nn.Module):
    """An embedding bag, an embedding and a linear layer, side by side."""

    def __init__(self, bag: nn.Module, rows: nn.Module, wide: nn.Module) -> None:
        super().__init__()
        self.bag, self.rows, self.wide, self.end = bag, rows, wide, nn.Linear(7, 1)

    def forward(self, indices: Tensor, first: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return self.bag(indices), self.rows(first), self.end(torch.tanh(self.wide(x)))


def splits(
    bag: nn.Module | None = None, rows: nn.Module | None = None, wide: nn.Module | None = None
) -> dict[str, tuple[str, int]]:
    """Return the kind of every layer that can be split by outputs, and its number of features."""
    torch.manual_seed(0)
    model = Look(bag or nn.EmbeddingBag(ROWS, 6), rows or nn.Embedding(ROWS, 6), wide or nn.Linear(6, 7))
    indices = torch.zeros(2, 4, dtype=torch.int64)
    graph = gp.capture(model, {"indices": indices, "first": indices[:, 0], "x": torch.zeros(2, 6)})
    found = [each for each in splittable(graph) if each.by == "outputs"]
    return {each.layer: (each.kind, each.branches[0].stop) for each in found}


def test_layers_are_found_with_their_features() -> None:
    assert splits() == {"bag": ("EmbeddingBag", 6), "rows": ("Embedding", 6), "wide": ("Linear", 7)}


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


REFUSED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "rows with a largest norm": ("rows", lambda: nn.Embedding(ROWS, 6, max_norm=1.0)),
    "rows with sparse gradients": ("rows", lambda: nn.Embedding(ROWS, 6, sparse=True)),
    "a bag of largest rows": ("bag", lambda: nn.EmbeddingBag(ROWS, 6, mode="max")),
    "a hook": ("wide", lambda: hooked(nn.Linear(6, 7))),
    "a subclass": ("wide", lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(6, 7)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_split_is_left_alone(why: str) -> None:
    name, build = REFUSED[why]
    assert splits(**{name: build()}).keys() == {"bag", "rows", "wide"} - {name}
