"""The parts of an embedding by rows add up to the whole layer, in results and gradients."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from graphpipe.graph import ParameterSlice
from graphpipe.model.split.row_parts import EmbeddingBagRows, EmbeddingRows

ROWS = 10
CUTS = ([0, 5, 10], [0, 1, 4, 10], [0, 3, 4, 9, 10])


def parts_of(layer: nn.Embedding | nn.EmbeddingBag, cuts: list[int]) -> list[EmbeddingRows | EmbeddingBagRows]:
    found: list[EmbeddingRows | EmbeddingBagRows] = []
    for start, stop in pairwise(cuts):
        piece = ParameterSlice(parameter="weight", dimension=0, start=start, stop=stop)
        weight = nn.Parameter(layer.weight.detach()[start:stop].clone())
        bag = isinstance(layer, nn.EmbeddingBag)
        found.append(EmbeddingBagRows(layer, weight, piece) if bag else EmbeddingRows(layer, weight, piece))
    return found


def results(layer: nn.Embedding | nn.EmbeddingBag, cuts: list[int], indices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return results and gradients of the parts, each beside that of the whole layer."""
    parts = parts_of(layer, cuts)
    whole, total = layer(indices), torch.stack([part(indices) for part in parts]).sum(0)
    upstream = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1))
    whole.backward(upstream)
    total.backward(upstream)
    gradients = [part.weight.grad for part in parts if part.weight.grad is not None]
    assert layer.weight.grad is not None
    return [(total, whole), (torch.cat(gradients), layer.weight.grad)]


def indices_of(dtype: torch.dtype, padding: int | None) -> Tensor:
    indices = torch.randint(ROWS, (40, 7), generator=torch.Generator().manual_seed(0))
    indices[0] = 0 if padding is None else padding  # a bag of nothing but padding
    return indices.to(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding", [None, 0, 3, 9])
def test_the_rows_of_an_embedding_are_those_of_the_layer_bit_for_bit(padding: int | None, dtype: torch.dtype) -> None:
    for cuts in CUTS:
        layer = nn.Embedding(ROWS, 1, padding_idx=padding)
        for found, wanted in results(layer, cuts, indices_of(dtype, padding)):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("padding", [None, 0, 3, 9])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [False, True])
def test_the_shares_of_a_bag_add_up_to_the_layer(mode: str, padding: int | None, last: bool) -> None:
    # A mean divides by all indices of the bag that are not padding, in whichever part they are.
    for cuts in CUTS:
        layer = nn.EmbeddingBag(ROWS, 3, mode=mode, padding_idx=padding, include_last_offset=last)
        for found, wanted in results(layer, cuts, indices_of(torch.int64, padding)):
            assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("index", [-1, ROWS])
@pytest.mark.parametrize("layer", [nn.Embedding(ROWS, 2), nn.EmbeddingBag(ROWS, 2, mode="sum")])
def test_an_index_that_the_table_does_not_have_fails_as_in_the_layer(
    layer: nn.Embedding | nn.EmbeddingBag, index: int
) -> None:
    """Zeros from every part would hide the mistake."""
    indices = torch.tensor([[1, index]])
    failed = 0
    for part in parts_of(layer, CUTS[1]):
        try:
            part(indices)
        except (IndexError, RuntimeError):
            failed += 1
    assert failed == 1
    with pytest.raises((IndexError, RuntimeError)):
        layer(indices)
