"""An embedding can be split by rows if its indices come from one value, and nothing else sees the whole table."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import graphpipe as gp
from graphpipe.graph import splittable

ROWS = 900


class Look(nn.Module):
    """A table, whose results something else may use: (n, 3) int64 -> (n, 1)."""

    def __init__(self, table: nn.Module, read: Callable[["Look", Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.table, self.end, self.read = table, nn.Linear(3, 1), read
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor([0, 300, 600]))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        looked = self.table(ids) if self.read is None else self.read(self, ids)
        return looked.flatten(1).sum(1, keepdim=True) + self.end(x)


def splits(
    table: nn.Module, read: Callable[[Look, Tensor], Tensor] | None = None, **options: tuple[str, ...]
) -> list[tuple[str, str, int]]:
    """Return the layer, the kind and the rows of every operator that can be split by rows."""
    inputs = {"ids": torch.zeros(4, 3, dtype=torch.int64), "x": torch.zeros(4, 3)}
    graph = gp.capture(Look(table, read), inputs, **options)  # pyright: ignore[reportArgumentType]
    found = [each for each in splittable(graph) if each.by == "rows"]
    assert all(each.branches[0].model_input == "ids" for each in found)
    return [(each.layer, each.kind, each.branches[0].stop) for each in found]


FOUND: dict[str, Callable[[Look, Tensor], Tensor]] = {
    "the indices themselves": lambda look, ids: look.table(ids),
    "some of the indices": lambda look, ids: look.table(ids[:, 1:]),
    "one column of them": lambda look, ids: look.table(ids[:, 0]),
    "an offset for every field": lambda look, ids: look.table(ids + look.offsets),
    "a mask of the same indices": lambda look, ids: look.table(ids) * (ids > 0)[..., None],
}


@pytest.mark.parametrize("how", FOUND)
def test_a_table_is_found_with_what_leads_to_it(how: str) -> None:
    assert splits(nn.Embedding(ROWS, 1), FOUND[how]) == [("table", "Embedding", ROWS)]


def test_a_bag_is_found() -> None:
    for mode in ("sum", "mean"):
        assert splits(nn.EmbeddingBag(ROWS, 1, mode=mode, padding_idx=2)) == [("table", "EmbeddingBag", ROWS)]


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


def two_lists(look: Look, ids: Tensor) -> Tensor:
    gate = look.end(ids.float())
    return look.table(ids + (gate > 0).long()) * gate[..., None]


REFUSED: dict[str, tuple[nn.Module, Callable[[Look, Tensor], Tensor] | None]] = {
    "a largest norm": (nn.Embedding(ROWS, 4, max_norm=1.0), None),
    "sparse gradients": (nn.Embedding(ROWS, 4, sparse=True), None),
    "gradients scaled by frequency": (nn.Embedding(ROWS, 4, scale_grad_by_freq=True), None),
    "a bag with gradients scaled by frequency": (nn.EmbeddingBag(ROWS, 4, mode="sum", scale_grad_by_freq=True), None),
    "a bag of largest rows": (nn.EmbeddingBag(ROWS, 4, mode="max"), None),
    "a hook": (hooked(nn.Embedding(ROWS, 4)), None),
    "a parametrised weight": (parametrizations.weight_norm(nn.Embedding(ROWS, 4)), None),
    "a weight that is read elsewhere": (
        nn.Embedding(ROWS, 4),
        lambda look, ids: look.table(ids) + look.table.get_parameter("weight").sum(),
    ),
    "a layer that is called twice": (nn.Embedding(ROWS, 4), lambda look, ids: look.table(ids) + look.table(ids + 1)),
    "indices that come from two values": (nn.Embedding(ROWS, 4), two_lists),
    "indices that are drawn": (nn.Embedding(ROWS, 4), lambda look, ids: look.table(torch.randint_like(ids, ROWS))),
    "weights for every index": (
        nn.EmbeddingBag(ROWS, 4, mode="sum"),
        lambda look, ids: look.table(ids, per_sample_weights=ids.float()),
    ),
    "a single row": (nn.Embedding(1, 400), None),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_split_is_left_alone(why: str) -> None:
    table, read = REFUSED[why]
    assert splits(table, read) == []


def test_a_table_that_needs_the_whole_mini_batch_is_left_alone() -> None:
    assert splits(nn.Embedding(ROWS, 1), whole_batch=("table",)) == []
