"""Character language models for the benchmark of weight policies: a chain of eight stages, and one of two branches.

The text comes with Python: the help pages of `pydoc`, 0.46 million characters in Python 3.11.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pydoc_data import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model import DagModule

CONTEXT, WIDTH, HEADS = 64, 144, 4
STAGES = 8
VALIDATION = 64
"""Windows of text, the same for all runs."""


class Block(nn.Module):
    """A layer of a transformer: causal attention, then two linear layers, both added to what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.heads, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, characters, width) to the same shape."""
        samples, length, _ = x.shape
        heads = self.heads(self.norms[0](x)).view(samples, length, 3 * HEADS, WIDTH // HEADS).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(*heads.chunk(3, 1), is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class First(nn.Module):
    """Embeds characters and positions, then a block."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block = Block()

    def forward(self, text: Tensor) -> Tensor:
        """Map (samples, characters) to (samples, characters, width)."""
        return self.block(self.characters(text) + self.positions.weight)


class Last(nn.Module):
    """Adds what it reads, then a block, and scores the next characters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.block, self.norm, self.score = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map one or more (samples, characters, width) to (samples, characters, scores)."""
        return self.score(self.norm(self.block(torch.stack(inputs).sum(0))))


FEEDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "chain": {"s0": ("text",)} | {f"s{at}": (f"s{at - 1}",) for at in range(1, STAGES)},
    "two branches": {
        **{"s0": ("text",), "s1": ("s0",), "s2": ("s1",), "s3": ("s2",)},
        **{"s4": ("s0",), "s5": ("s4",), "s6": ("s5",), "s7": ("s3", "s6")},
    },
}
"""By model: what each of its eight stages reads."""


def build_model(name: str, characters: int, seed: int) -> DagModule:
    """Return a model of about two million parameters, each stage one submodule."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [First(characters), *(Block() for _ in range(STAGES - 2)), Last(characters)]
    return DagModule({f"s{at}": layer for at, layer in enumerate(layers)}, inputs=FEEDS[name])


def next_character_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per character."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


@dataclass(frozen=True, slots=True)
class Text:
    """Characters as numbers."""

    train: Tensor
    validation: Tensor
    characters: int
    """Different characters."""

    @staticmethod
    def read() -> "Text":
        """Return the help pages; their last tenth is for validation."""
        text = "\n".join(page for _, page in sorted(topics.topics.items()))
        known = {character: number for number, character in enumerate(sorted({*text}))}
        numbers = torch.tensor([known[each] for each in text])
        cut = len(numbers) * 9 // 10
        return Text(numbers[:cut], numbers[cut:], len(known))

    def batch(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return windows for training, and the next characters."""
        return _windows(self.train, size, seed)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Return windows for validation, and the next characters."""
        return _windows(self.validation, VALIDATION, 0)


def _windows(text: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT, (count,), generator=torch.Generator().manual_seed(seed))
    windows = text[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
