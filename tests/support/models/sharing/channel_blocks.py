"""Blocks of convolutional networks, whose channels ranks can share."""

from torch import Tensor, nn
from torch.nn import functional

CHANNELS, WIDE, SIZE = 4, 8, 6


class Residual(nn.Module):
    """Two convolutions with batch norms, as in ResNet."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, WIDE, 3, padding=1, bias=False)
        self.second = nn.Conv2d(WIDE, channels, 3, padding=1)
        self.norm, self.last, self.act = nn.BatchNorm2d(WIDE), nn.BatchNorm2d(channels), nn.ReLU()

    def forward(self, values: Tensor) -> Tensor:
        """Return as many channels: (n, channels, height, width) -> the same."""
        return self.act(values + self.last(self.second(self.act(self.norm(self.first(values))))))


class Inverted(nn.Module):
    """A depthwise convolution and group norms between two pointwise ones, as in MobileNet and ConvNeXt."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.widen, self.narrow = nn.Conv2d(channels, WIDE, 1), nn.Conv2d(WIDE, channels, 1)
        self.apart, self.inside = nn.Conv2d(WIDE, WIDE, 3, padding=1, groups=WIDE), nn.GroupNorm(4, WIDE)

    def forward(self, values: Tensor) -> Tensor:
        """Return as many channels."""
        wide = self.inside(self.apart(functional.gelu(self.widen(self.norm(values)))))
        return values + self.narrow(functional.gelu(wide))


class Sounds(nn.Module):
    """Convolutions of one dimension, with a pooling between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(CHANNELS, WIDE, 3), nn.BatchNorm1d(WIDE), nn.SiLU(), nn.MaxPool1d(2), nn.Conv1d(WIDE, CHANNELS, 1)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return channels of fewer positions."""
        return self.layers(values)
