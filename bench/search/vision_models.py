"""Two small networks for images, which no planner here was made for: ResNet-18 and SqueezeNet 1.1.

References:
    He et al.: Deep residual learning for image recognition. CVPR 2016.
    Iandola et al.: SqueezeNet. 2016.
"""

import torch
from torch import Tensor, nn

import graphpipe as gp

CLASSES, PIXELS = 1000, 224


class _Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        narrow = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = narrow if inputs != outputs else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return maps of `outputs` channels."""
        return torch.relu(self.convolutions(images) + self.shortcut(images))


def resnet18() -> nn.Module:
    """Return ResNet-18."""
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs in (64, 128, 256, 512):
        blocks += [_Residual(inputs, outputs, 1 if inputs == outputs else 2), _Residual(outputs, outputs, 1)]
        inputs = outputs
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class _Fire(nn.Module):
    """A narrow convolution that feeds two wide ones."""

    def __init__(self, inputs: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, narrow, 1)
        self.small = nn.Conv2d(narrow, wide, 1)
        self.large = nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return maps of `2 * wide` channels."""
        squeezed = torch.relu(self.squeeze(images))
        return torch.cat([torch.relu(self.small(squeezed)), torch.relu(self.large(squeezed))], 1)


def squeezenet() -> nn.Module:
    """Return SqueezeNet 1.1 without its dropout."""
    sizes = ((64, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128))
    sizes += ((256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256))
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU()]
    for number, each in enumerate(sizes):
        pool = (nn.MaxPool2d(3, 2, ceil_mode=True),) if number in (0, 2, 4) else ()
        parts += [*pool, _Fire(*each)]
    return nn.Sequential(*parts, nn.Conv2d(512, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def vision_graph(name: str) -> gp.Graph:
    """Return the graph of `resnet18` or `squeezenet`."""
    with torch.device("meta"):
        model, images = {"resnet18": resnet18, "squeezenet": squeezenet}[name](), torch.empty(2, 3, PIXELS, PIXELS)
    return gp.capture(model, images)
