"""The model, the data and the loss of this project. Put your own in their place.

    dense  (n, 16)        -> dense: layers  -+-> head (n, 2)
    words  (n, 12) int64  -> words: layers  -+

The branches do not depend on each other, so a plan may train them at the same time.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp

FEATURES, WORDS, LENGTH, WIDTH, LAYERS = 16, 100, 12, 64, 4


class Words(nn.Module):
    """The mean of embedded words: (n, LENGTH) int64 -> (n, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return self.embedding(words).mean(dim=1)


class Model(nn.Module):
    """Two branches and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(FEATURES, WIDTH), *_layers())
        self.words = nn.Sequential(Words(), *_layers())
        self.head = nn.Linear(2 * WIDTH, 2)

    def forward(self, dense: Tensor, words: Tensor) -> Tensor:
        return self.head(torch.cat([self.dense(dense), self.words(words)], dim=1))


def samples(count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and labels (count,). A label says whether the features outweigh the share of early words."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(count, FEATURES, generator=generator)
    words = torch.randint(WORDS, (count, LENGTH), generator=generator)
    labels = dense[:, :4].sum(dim=1) > 4 * (words < WORDS // 2).float().mean(dim=1) - 2
    return {"dense": dense, "words": words}, labels.long()


def epoch(number: int, batch_size: int, seed: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield the mini-batches of an epoch: the same samples in another order. Every rank must get the same."""
    inputs, labels = samples(4096, seed=0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * seed + number))
    for rows in order.split(batch_size):
        if len(rows) == batch_size:
            yield {name: tensor[rows] for name, tensor in inputs.items()}, labels[rows]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose label has the larger logit."""
    return (logits.argmax(dim=1) == labels).float().mean().item()


def task() -> gp.Task:
    """Return the task that train.toml names."""
    inputs, _ = samples(2, seed=0)
    return gp.Task(
        module=Model(),
        example_inputs=inputs,
        loss_fn=functional.cross_entropy,
        epoch=epoch,
        held_out=samples(512, seed=1),
        accuracy=accuracy,
    )


def _layers() -> list[nn.Module]:
    return [nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)]
