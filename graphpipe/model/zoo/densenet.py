"""DenseNet: inside a block, every layer reads the outputs of all earlier layers of the block.

    pixels -> stem -> (layer, layer, ... -> transition) x 3 -> layer, layer, ... -> head
                         +------+------------^

Huang et al. 2017, DenseNet-121: blocks of 6, 12, 24 and 16 layers, growth 32, bottlenecks of 4 times the growth,
transitions that halve channels and resolution, 224 x 224 pixels, 1000 classes. Simplified by us: group norms in place
of batch norms, because the result of a batch norm depends on the size of a micro-batch.
"""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model.zoo.synthetic_tasks import classify_images
from graphpipe.model.zoo.zoo_model import ZooModel, assemble


@dataclass(frozen=True, slots=True, kw_only=True)
class DensenetShape:
    """Sizes of the DenseNet."""

    block0: int = 6
    """Number of layers of the first block."""
    block1: int = 12
    block2: int = 24
    block3: int = 16
    growth: int = 32
    """Number of channels that each layer adds."""
    pixels: int = 224
    classes: int = 1000


PAPER = DensenetShape()
SMALL = DensenetShape(block0=2, block1=2, block2=3, block3=2, growth=8, pixels=32, classes=4)


class Norm(nn.GroupNorm):
    """A group norm of channels, in up to 32 groups."""

    def __init__(self, channels: int) -> None:
        super().__init__(gcd(32, channels), channels)


class Stem(nn.Module):
    """Quarters the resolution: (n, 3, pixels, pixels) -> (n, channels, pixels / 4, pixels / 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, channels, kernel_size=7, stride=2, padding=3, bias=False)
        self.norm = Norm(channels)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(self.norm(self.convolve(pixels))), 3, stride=2, padding=1)


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution of the concatenated features: k times (n, ..., h, w) -> (n, growth, h, w)."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = Norm(channels)
        self.narrow = nn.Conv2d(channels, 4 * growth, kernel_size=1, bias=False)
        self.narrow_norm = Norm(4 * growth)
        self.convolve = nn.Conv2d(4 * growth, growth, kernel_size=3, padding=1, bias=False)

    def forward(self, *features: Tensor) -> Tensor:
        narrow = self.narrow(functional.relu(self.norm(torch.cat(features, dim=1))))
        return self.convolve(functional.relu(self.narrow_norm(narrow)))


class Transition(nn.Module):
    """Halves channels and resolution of the concatenated features of a block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = Norm(channels)
        self.narrow = nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False)

    def forward(self, *features: Tensor) -> Tensor:
        return functional.avg_pool2d(self.narrow(functional.relu(self.norm(torch.cat(features, dim=1)))), 2)


class FeaturesHead(nn.Module):
    """Logits of the mean over pixels of the concatenated features: k times (n, ..., h, w) -> (n, classes)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = Norm(channels)
        self.linear = nn.Linear(channels, classes)

    def forward(self, *features: Tensor) -> Tensor:
        return self.linear(functional.relu(self.norm(torch.cat(features, dim=1))).mean(dim=(2, 3)))


class Densenet(nn.Module):
    """Logits: (n, 3, pixels, pixels) float32 -> (n, classes)."""

    def __init__(self, shape: DensenetShape) -> None:
        super().__init__()
        channels = 2 * shape.growth
        self.stem = Stem(channels)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for layers in (shape.block0, shape.block1, shape.block2, shape.block3):
            if self.blocks:
                self.transitions.append(Transition(channels))
                channels //= 2
            self.blocks.append(
                nn.ModuleList(DenseLayer(channels + n * shape.growth, shape.growth) for n in range(layers))
            )
            channels += layers * shape.growth
        self.head = FeaturesHead(channels, shape.classes)

    def forward(self, pixels: Tensor) -> Tensor:
        features = [self.stem(pixels)]
        for block, following in zip(self.blocks, [*self.transitions, self.head], strict=True):
            assert isinstance(block, nn.ModuleList)
            for layer in block:
                features.append(layer(*features))
            features = [following(*features)]
        return features[0]


def build(shape: DensenetShape, device: str) -> ZooModel:
    """Return the model; pixels are (n, 3, pixels, pixels) float32, the output (n, classes)."""
    with torch.device(device):
        module = Densenet(shape)
    return assemble(module, functional.cross_entropy, classify_images(shape.classes, shape.pixels), device)
