"""Handwritten digits and their captions: a real image-text model that trains in a minute on a laptop.

    pixels (n, 1, 8, 8)   -> image: stem, residual convolutions, projection  -+-> head: similarity of every scan
    tokens (n, 32) int64  -> text:  characters, transformer layers, projection -+         with every caption (n, n)

`digits.csv.gz` holds 1,797 scans with their digits: the test set of "Optical Recognition of Handwritten Digits"
(Alpaydin and Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0). Every scan comes with a short caption in
English, read as characters. The digit of a scan is recognised by the caption that is most similar to it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp

SCANS = Path(__file__).with_name("digits.csv.gz")
"""A row for each scan: 8 x 8 pixels from 0 to 16, then the digit."""
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("{}", "the digit {}", "a scan of the digit {}", "someone wrote a {} by hand")
LENGTH = 32
CHANNELS = 64
HIDDEN = 64
EMBEDDING = 64
LETTERS = " abcdefghijklmnopqrstuvwxyz"


class Convolutions(nn.Module):
    """Two convolutions with a residual connection: (n, CHANNELS, 8, 8) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, CHANNELS)
        self.first = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=3, padding=1)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.second(functional.relu(self.first(self.norm(states))))


class Characters(nn.Module):
    """Characters and their positions: (n, LENGTH) int64 -> (n, LENGTH, HIDDEN)."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), HIDDEN)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, HIDDEN))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.letter(tokens) + self.position


class Head(nn.Module):
    """Cosine similarity of every scan with every caption, over a learnt temperature: two (n, EMBEDDING) -> (n, n)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        similarity = functional.normalize(image, dim=-1) @ functional.normalize(text, dim=-1).T
        return self.log_scale.exp() * similarity


def model(image_layers: int = 8, text_layers: int = 6) -> tuple[gp.DagModule, dict[str, Tensor]]:
    """Return the model and example inputs. The head compares all samples, so it gets the whole mini-batch."""
    image = nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(1, CHANNELS, kernel_size=3, padding=1),
            **{f"layer{index}": Convolutions() for index in range(image_layers)},
            pool=nn.AvgPool2d(2),
            flatten=nn.Flatten(),
            projection=nn.Linear(CHANNELS * 16, EMBEDDING),
        )
    )
    text = nn.Sequential(
        OrderedDict(
            characters=Characters(),
            **{f"layer{index}": _transformer_layer() for index in range(text_layers)},
            norm=nn.LayerNorm(HIDDEN),
            flatten=nn.Flatten(),
            projection=nn.Linear(LENGTH * HIDDEN, EMBEDDING),
        )
    )
    module = gp.DagModule(
        {"image": image, "text": text, "head": Head()},
        inputs={"image": ["pixels"], "text": ["tokens"], "head": ["image", "text"]},
        whole_batch=["head"],
        name="digits",
    )
    inputs, _ = data("train")
    return module, {name: rows[:2] for name, rows in inputs.items()}


def loss_fn(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the symmetric contrastive loss of (n, n) similarities, with pairs of equal labels as positives.

    Each row's targets are equal on its positives and sum to 1. The smallest possible loss is 0.
    """
    positives = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    targets = positives / positives.sum(dim=1, keepdim=True)
    scans = functional.kl_div(functional.log_softmax(logits, dim=1), targets, reduction="batchmean")
    captions = functional.kl_div(functional.log_softmax(logits.T, dim=1), targets, reduction="batchmean")
    return (scans + captions) / 2


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return an Adam with a warm-up: its first steps would make all captions alike, and they would stay so."""
    return torch.optim.RAdam(parameters, lr=2e-3)


def data(part: Literal["train", "held-out"]) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and labels (n,) of a fixed part of the scans. Every fifth scan is held out.

    Training captions use the templates in turn. The held-out captions are the plain names from zero to nine in turn,
    regardless of the scan, so that the first ten columns of the similarities are the ten digits, for `accuracy`.
    """
    rows = torch.from_numpy(np.loadtxt(SCANS, delimiter=",", dtype=np.int64))
    held_out = torch.arange(len(rows)) % 5 == 0
    chosen = rows[held_out if part == "held-out" else ~held_out]
    labels = chosen[:, 64]
    pixels = chosen[:, :64].float().reshape(-1, 1, 8, 8) / 8 - 1
    if part == "held-out":
        captions = [NAMES[row % 10] for row in range(len(labels))]
    else:
        captions = [TEMPLATES[row % len(TEMPLATES)].format(NAMES[label]) for row, label in enumerate(labels)]
    return {"pixels": pixels, "tokens": torch.stack([tokenise(caption) for caption in captions])}, labels


def samples(part: Literal["train", "held-out"]) -> list[dict[str, Tensor]]:
    """Return the samples of a part, as a data set of `graphpipe train`."""
    inputs, labels = data(part)
    return [
        {"pixels": pixels, "tokens": tokens, "label": label}
        for pixels, tokens, label in zip(inputs["pixels"], inputs["tokens"], labels, strict=True)
    ]


def batches(epochs: int, batch_size: int = 128, seed: int = 0) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Return the mini-batches of a training. Each epoch has another order and drops the incomplete mini-batch."""
    inputs, labels = data("train")
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(labels), generator=generator) for _ in range(epochs)]
    chosen = [rows for order in orders for rows in order.split(batch_size) if len(rows) == batch_size]
    return [({name: tensor[rows] for name, tensor in inputs.items()}, labels[rows]) for rows in chosen]


def task() -> gp.Task:
    """Return the task of `graphpipe train examples/digits.toml`."""
    module, example_inputs = model()
    return gp.Task(
        module=module,
        example_inputs=example_inputs,
        loss_fn=loss_fn,
        dataset=samples("train"),
        targets="label",
        held_out=data("held-out"),
        accuracy=accuracy,
    )


def tokenise(caption: str) -> Tensor:
    """Return the (LENGTH,) int64 numbers of a caption's letters, padded with spaces."""
    return torch.tensor([LETTERS.index(letter) for letter in caption.ljust(LENGTH)])


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of held-out scans whose own digit's name is the most similar of the ten names."""
    return (logits[:, :10].argmax(dim=1) == labels).float().mean().item()


def _transformer_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        HIDDEN, nhead=4, dim_feedforward=4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True
    )
