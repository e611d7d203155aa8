"""The model and the requests of `bench.running.requests.requests`."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

REQUESTS = 10_000
WIDTH = 256


class TwoTowers(nn.Module):
    """Two towers of three layers, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(*(self._layer() for _ in range(3))) for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def _layer(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return 10 numbers for each sample."""
        return self.head(self.left(a) + self.right(b))


def model() -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the model, alike in every process, and example inputs."""
    torch.manual_seed(0)
    return TwoTowers(), {name: torch.zeros(4, WIDTH) for name in "ab"}


def requests() -> Iterator[dict[str, Tensor]]:
    """Yield requests of 1 to 5 samples."""
    generator = torch.Generator().manual_seed(1)
    for number in range(REQUESTS):
        yield {name: torch.randn(number % 5 + 1, WIDTH, generator=generator) for name in "ab"}
