"""The model, the data and the loss of this project. Put your own in their place.

    dense  (n, 16)        -> dense: layers  -+-> head (n, 2)
    words  (n, 12) int64  -> words: layers  -+

The branches do not depend on each other, so a plan may train them at the same time.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

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


class Samples(Dataset[tuple[dict[str, Tensor], Tensor]]):
    """Inputs of one sample with its label, by index. Each rank reads only those that its stages consume."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dense = torch.randn(count, FEATURES, generator=generator)
        self.words = torch.randint(WORDS, (count, LENGTH), generator=generator)
        early = (self.words < WORDS // 2).float().mean(dim=1)
        self.labels = (self.dense[:, :4].sum(dim=1) > 4 * early - 2).long()  # features against the share of early words

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"dense": self.dense[index], "words": self.words[index]}, self.labels[index]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose label has the larger logit."""
    return (logits.argmax(dim=1) == labels).float().mean().item()


def task() -> gp.Task:
    """Return the task that train.toml names."""
    training = Samples(4096, seed=0)
    inputs, _ = default_collate([training[0], training[1]])
    return gp.Task(
        module=Model(),
        example_inputs=inputs,
        loss_fn=functional.cross_entropy,
        dataset=training,
        held_out=Samples(512, seed=1),
        accuracy=accuracy,
    )


def _layers() -> list[nn.Module]:
    return [nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)]
