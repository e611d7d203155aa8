"""A model whose layers take a known time on every host: they sleep, and pass on real tensors.

The last rank is three times as slow. Only little is computed, so that four hosts can share one machine.
"""

import os
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

LAYERS, WIDTH, SECONDS, SLOWER = 12, 32, 5e-3, 3
"""Seconds of a layer for a sample on a fast host."""
ROWS = (100, *(100 if layer < 4 else 50 if layer < 8 else 25 for layer in range(LAYERS)))
"""Of a sample between layers, 128 bytes each: 12.8 KB at the beginning, 3.2 KB at the end."""
SAMPLES, REQUEST = 800, 8


class Layer(nn.Module):
    """A small linear layer that takes a while."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.linear = rows, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the first rows of every sample, changed."""
        return wait(self.linear(x[:, : self.rows]))


@torch.library.custom_op("graphpipe_bench::wait", mutates_args=())
def wait(x: Tensor) -> Tensor:
    """Return `x` after the time that a layer takes on this host."""
    slow = os.environ.get("RANK") == "3"
    time.sleep(SECONDS * len(x) * (SLOWER if slow else 1))
    return x.clone()


@wait.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def model() -> tuple[nn.Module, Tensor]:
    """Return the layers, and an example."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(rows) for rows in ROWS[1:])), torch.zeros(2, ROWS[0], WIDTH)


def requests() -> Iterator[Tensor]:
    """Yield requests of a few samples."""
    for _ in range(SAMPLES // REQUEST):
        yield torch.zeros(REQUEST, ROWS[0], WIDTH)
