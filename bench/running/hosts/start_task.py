"""The tasks of `start.py`, whose ranks note the processor time they have used before their first mini-batch."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp

NOTES = "GRAPHPIPE_START_NOTES"
"""The environment variable that names the folder of the notes."""
EXAMPLES = Path(__file__).parents[3] / "examples"  # its process does not know the folder of `bench`
WIDTH, WORDS, LENGTH, LAYERS = 32, 100, 16, 8


class Block(nn.Module):
    """A transformer layer written by hand: (n, LENGTH, WIDTH) -> (n, LENGTH, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        normed = self.norm1(states)
        states = states + self.attention(normed, normed, normed, need_weights=False)[0]
        return states + self.mlp(self.norm2(states))


class Transformer(nn.Module):
    """A language model without a mask: (n, LENGTH) int64 -> (n, WORDS)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)).mean(1))


def transformer() -> gp.Task:
    """Return a task that imports only torch."""
    start = time.process_time()

    def epoch(number: int, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.randint(WORDS, (batch_size, LENGTH)), torch.randint(WORDS, (batch_size,))

    task = gp.Task(
        module=Transformer(),
        example_inputs=torch.randint(WORDS, (2, LENGTH)),
        loss_fn=nn.functional.cross_entropy,
        epoch=epoch,
    )
    return replace(task, epoch=_noting(epoch, time.process_time() - start))


def digits() -> gp.Task:
    """Return the task of the demo."""
    start = time.process_time()
    sys.path.insert(0, str(EXAMPLES))
    from digits import batches, task  # pyright: ignore[reportMissingImports]

    def epoch(number: int, batch_size: int, seed: int) -> Any:
        return batches(1, batch_size, seed=1000 * seed + number)

    made: gp.Task = task()
    return replace(made, dataset=None, targets=None, columns={}, epoch=_noting(epoch, time.process_time() - start))


def _noting(epoch: Callable[..., Any], own_seconds: float) -> Callable[..., Any]:
    # Called twice, to count the steps and for the first mini-batch. The later note replaces the earlier one.
    def noting(number: int, batch_size: int, seed: int) -> Any:
        if rank := os.environ.get("RANK"):
            note = {"ready_seconds": time.process_time(), "own_seconds": own_seconds}
            Path(os.environ[NOTES], f"{rank}.json").write_text(json.dumps(note))
        return epoch(number, batch_size, seed)

    return noting
