"""Convolutions are shared by channels, with what computes each channel for itself between them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from channel_blocks import CHANNELS, SIZE, WIDE, Inverted, Residual, Sounds
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.graph import OpShards

IMAGES, SOUNDS = torch.zeros(2, CHANNELS, SIZE, SIZE), torch.zeros(2, CHANNELS, SIZE)


def shards_of(block: nn.Module, values: Tensor) -> OpShards | None:
    """Return the layout of a block that is kept whole."""
    model = nn.Sequential(block)
    graph = gp.with_shards(gp.capture(model, values, opaque=["0"]), model)
    (found,) = [op.shards for op in graph.ops]
    return found


@pytest.mark.parametrize(
    ("kind", "values", "most", "styles"),
    [
        (Residual, IMAGES, WIDE, {"0.first": "column", "0.norm": "channels", "0.second": "row"}),
        (
            Inverted,
            IMAGES,
            4,
            {"0.widen": "column", "0.apart": "channels", "0.inside": "channels", "0.narrow": "row"},
        ),
        (Sounds, SOUNDS, WIDE, {"0.layers.0": "column", "0.layers.1": "channels", "0.layers.4": "row"}),
    ],
)
def test_convolutions_are_shared_by_channels(
    kind: Callable[[], nn.Module], values: Tensor, most: int, styles: dict[str, str]
) -> None:
    found = shards_of(kind(), values)
    assert found is not None
    assert (found.most, {each.submodule: each.style for each in found.submodules}) == (most, styles)


def test_work_and_sums_of_a_residual_block() -> None:
    found = shards_of(Residual(), IMAGES)
    assert found is not None
    pixels = SIZE * SIZE
    assert found.parameter_bytes == 4 * (2 * 9 * CHANNELS * WIDE + 2 * WIDE)
    assert found.figures.flops_per_sample >= 2 * 2 * 9 * CHANNELS * WIDE * pixels
    assert found.figures.saved_bytes_per_sample >= 4 * 2 * WIDE * pixels  # of the norm and the activation
    # The sum of the second convolution, and the statistics of the channels of both ranks.
    assert found.figures.forward.reductions == 1.5
    assert found.figures.forward.bytes_per_sample >= 4 * CHANNELS * pixels


class Mixed(nn.Module):
    """Two convolutions with something between them that reads all channels."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.second = nn.Conv2d(CHANNELS, WIDE, 1), between, nn.Conv2d(WIDE, CHANNELS, 1)

    def forward(self, values: Tensor) -> Any:
        return self.second(self.between(self.first(values)))


@pytest.mark.parametrize(
    "between",
    [nn.GroupNorm(1, WIDE), nn.Softmax(1), nn.Conv2d(WIDE, WIDE, 3, padding=1), nn.LayerNorm(SIZE)],
    ids=["one group", "softmax", "convolution", "norm"],
)
def test_what_mixes_channels_is_no_part_of_a_pair(between: nn.Module) -> None:
    found = shards_of(Mixed(between), IMAGES)
    paired = isinstance(between, nn.Conv2d)  # the first two convolutions are a pair then
    assert (found is None) != paired
    if found is not None:
        assert {each.submodule: each.style for each in found.submodules} == {"0.first": "column", "0.between": "row"}
