"""A U-Net that finds the discs in a picture: a graph with skip connections, which a chain of stages must carry along.

    picture (n, 1, 32, 32) -> first -> second -> bottom -> up -> last -> (n, 32, 32)
                                |        +-----------------^      ^
                                +---------------------------------+

    graphpipe train examples/segmentation.toml

Pictures are drawn: discs and squares over noise. The targets are the pixels of the discs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import graphpipe as gp

SIZE, CHANNELS = 32, 16


class Convolutions(nn.Module):
    """Two convolutions at one resolution: (n, inputs, h, w) -> (n, outputs, h, w)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()),
        )

    def forward(self, picture: Tensor) -> Tensor:
        return self.layers(picture)


class Up(nn.Module):
    """Twice the resolution, joined with what came down beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.larger = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.mix = Convolutions(2 * outputs, outputs)

    def forward(self, below: Tensor, beside: Tensor) -> Tensor:
        return self.mix(torch.cat([self.larger(below), beside], dim=1))


class UNet(nn.Module):
    """Two levels down and two up, and a logit for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Convolutions(1, CHANNELS), Convolutions(CHANNELS, 2 * CHANNELS)
        self.bottom = Convolutions(2 * CHANNELS, 4 * CHANNELS)
        self.up, self.last = Up(4 * CHANNELS, 2 * CHANNELS), Up(2 * CHANNELS, CHANNELS)
        self.pixels, self.smaller = nn.Conv2d(CHANNELS, 1, 1), nn.MaxPool2d(2)

    def forward(self, picture: Tensor) -> Tensor:
        first = self.first(picture)
        second = self.second(self.smaller(first))
        bottom = self.bottom(self.smaller(second))
        return self.pixels(self.last(self.up(bottom, second), first)).squeeze(1)


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with a disc and a square, and the pixels of the disc, drawn by index."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + index)
        x, y, left, top = (int(each) for each in torch.randint(6, SIZE - 6, (4,), generator=generator))
        rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        disc = (rows - y) ** 2 + (columns - x) ** 2 <= 16
        square = (rows - top).abs().maximum((columns - left).abs()) <= 3
        picture = 0.4 * torch.rand(SIZE, SIZE, generator=generator) + 0.6 * (disc | square)
        return picture.unsqueeze(0), disc.float()


def overlap(logits: Tensor, disc: Tensor) -> dict[str, float]:
    """Return the intersection over the union of the pixels that were found and those of the discs."""
    found, true = logits > 0, disc > 0.5
    return {"iou": ((found & true).sum() / (found | true).sum()).item()}


def task() -> gp.Task:
    """Return the task of `graphpipe train examples/segmentation.toml`."""
    return gp.Task(
        module=UNet(),
        example_inputs=torch.rand(2, 1, SIZE, SIZE),
        loss_fn=functional.binary_cross_entropy_with_logits,
        dataset=Shapes(1024, seed=1),
        held_out=Shapes(64, seed=2),
        metrics=overlap,
    )
