"""U-Net: an encoder that halves the image, and a decoder that reads every resolution of the encoder again.

    pixels -> down0 ---------------------------> up0 -> head
                +-> down1 -----------------> up1 -+
                      +-> ...              ... -+
                            +-> bottom -> up3 -+

Ronneberger et al. 2015: 4 halvings, 64 channels that double at each of them, two convolutions at each resolution,
ReLU, one channel in and two classes out. Simplified by us: images of 512 pixels with padded convolutions, so that the
classes are those of all pixels and skips need not be cropped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.model.zoo.blocks import chain
from graphpipe.model.zoo.synthetic_tasks import segment_images
from graphpipe.model.zoo.zoo_model import ZooModel, assemble


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetShape:
    """Sizes of the U-Net."""

    levels: int = 4
    """Number of halvings of the image."""
    pixels: int = 512
    channels: int = 64
    """Number of channels at the full resolution. Each halving doubles them."""
    classes: int = 2


PAPER = UnetShape()
SMALL = UnetShape(levels=3, pixels=16, channels=8)


class Convolution(nn.Module):
    """A 3 x 3 convolution and a ReLU: (n, width_in, height, width) -> (n, width_out, height, width)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(width_in, width_out, kernel_size=3, padding=1)

    def forward(self, states: Tensor) -> Tensor:
        return functional.relu(self.convolve(states))


class Join(nn.Module):
    """Doubles the resolution of the states from below, and appends the channels of the encoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(2 * channels, channels, kernel_size=2, stride=2)

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:
        return torch.cat([skip, self.enlarge(below)], dim=1)


class Unet(nn.Module):
    """Logits per pixel: (n, 1, pixels, pixels) float32 -> (n, classes, pixels, pixels)."""

    def __init__(self, shape: UnetShape) -> None:
        super().__init__()
        widths = [shape.channels * 2**level for level in range(shape.levels + 1)]
        self.down = nn.ModuleList(_twice(before, width) for before, width in zip([1, *widths], widths, strict=False))
        self.join = nn.ModuleList(Join(width) for width in widths[:-1])
        self.up = nn.ModuleList(_twice(2 * width, width) for width in widths[:-1])
        self.head = nn.Conv2d(shape.channels, shape.classes, kernel_size=1)

    def forward(self, pixels: Tensor) -> Tensor:
        states = self.down[0](pixels)
        skips: list[Tensor] = []
        for down in self.down[1:]:
            skips.append(states)
            states = down(functional.max_pool2d(states, 2))
        for skip, join, up in zip(reversed(skips), reversed(self.join), reversed(self.up), strict=True):
            states = up(join(skip, states))
        return self.head(states)


def build(shape: UnetShape, device: str) -> ZooModel:
    """Return the model; pixels are (n, 1, pixels, pixels) float32, the output (n, classes, pixels, pixels).

    Raises:
        InvalidInput: the image cannot be halved so often.
    """
    if shape.pixels % 2**shape.levels:
        raise InvalidInput(
            f"pixels = {shape.pixels} does not divide by 2 ** levels = {2**shape.levels}",
            where="unet",
            remedy="Choose pixels as a multiple of it.",
        )
    with torch.device(device):
        module = Unet(shape)
    return assemble(module, functional.cross_entropy, segment_images(shape.classes, shape.pixels), device)


def _twice(width_in: int, width: int) -> nn.Sequential:
    return chain({"first": Convolution(width_in, width), "second": Convolution(width, width)})
