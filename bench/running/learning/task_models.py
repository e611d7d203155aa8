"""Models of the tasks of weight prediction: a residual net, one like VGG, and a residual LSTM, of equal blocks.

These are the kinds of models in Guan et al., PipeOptim: ResNet-101, VGG-16, and residual LSTMs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.running.learning.task_data import Split, reviews, scans
from graphpipe.model import DagModule

BLOCKS = 8
CHANNELS, HIDDEN = 24, 48


class Residual(nn.Module):
    """Two convolutions, added to what they read: (n, CHANNELS, 8, 8) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Add to (n, CHANNELS, 8, 8)."""
        inner = functional.relu(self.norms[0](self.convolutions[0](x)))
        return functional.relu(x + self.norms[1](self.convolutions[1](inner)))


class Plain(nn.Module):
    """A convolution without a shortcut: (n, CHANNELS, 8, 8) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, CHANNELS, 8, 8) to the same shape."""
        return functional.relu(self.norm(self.convolution(x)))


class Recurrent(nn.Module):
    """An LSTM, added to what it reads: (n, words, HIDDEN) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add to (n, words, HIDDEN)."""
        return x + self.layer(x)[0]


class Read(nn.Module):
    """What makes states of inputs, then a block."""

    def __init__(self, inputs: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.inputs, self.block = inputs, block

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to states."""
        return self.block(self.inputs(x))


class Classify(nn.Module):
    """A block, then scores of the classes from the mean over all places."""

    def __init__(self, block: nn.Module, size: int, classes: int, places: tuple[int, ...]) -> None:
        super().__init__()
        self.block, self.scores, self.places = block, nn.Linear(size, classes), places

    def forward(self, x: Tensor) -> Tensor:
        """Map states to (n, classes)."""
        return self.scores(self.block(x).mean(self.places))


@dataclass(frozen=True, slots=True)
class Task:
    """Data, and a model of eight blocks, which stages take one or two at a time."""

    data: Callable[[], Split]
    block: Callable[[], nn.Module]
    words: bool
    classes: int

    def model(self, seed: int) -> DagModule:
        """Return the model with initial weights drawn with a seed."""
        torch.manual_seed(seed)
        size, places = (HIDDEN, (1,)) if self.words else (CHANNELS, (2, 3))
        embedding = nn.Embedding(self.data().values, HIDDEN) if self.words else nn.Conv2d(1, CHANNELS, 3, padding=1)
        first = Read(embedding, self.block())
        last = Classify(self.block(), size, self.classes, places)
        layers: list[nn.Module] = [first, *(self.block() for _ in range(BLOCKS - 2)), last]
        feeds = {"b0": ("x",)} | {f"b{at}": (f"b{at - 1}",) for at in range(1, BLOCKS)}
        return DagModule({f"b{at}": layer for at, layer in enumerate(layers)}, inputs=feeds)


TASKS: Mapping[str, Task] = {
    "residual net, digits": Task(scans, Residual, words=False, classes=10),
    "like VGG, digits": Task(scans, Plain, words=False, classes=10),
    "residual LSTM, reviews": Task(reviews, Recurrent, words=True, classes=2),
}
