"""Synthetic tasks that the small models learn in a few steps: a fixed pattern per label, plus noise."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from graphpipe.model.zoo.zoo_model import Batch


def patterns(count: int, *shape: int) -> Tensor:
    """Return `count` fixed random patterns of this shape, the same in every process."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1234))


def classify_sequences(names: list[str], classes: int, length: int, hidden: int) -> Callable[[Generator, int], Batch]:
    """Return a task: each input (n, length, hidden) is its pattern of the label, (n,) int64, plus noise."""
    known = patterns(classes, len(names), hidden)

    def batch(generator: Generator, samples: int) -> Batch:
        labels = torch.randint(classes, (samples,), generator=generator)
        inputs = {
            name: known[labels, index].unsqueeze(1) + torch.randn(samples, length, hidden, generator=generator)
            for index, name in enumerate(names)
        }
        return inputs, labels

    return batch


def arithmetic_sequences(vocabulary: int, length: int) -> Callable[[Generator, int], Batch]:
    """Return a task: tokens (n, length) count up by 1, 2 or 3, modulo the vocabulary; targets are the next tokens."""

    def batch(generator: Generator, samples: int) -> Batch:
        start = torch.randint(vocabulary, (samples, 1), generator=generator)
        step = torch.randint(1, 4, (samples, 1), generator=generator)
        tokens = (start + step * torch.arange(length + 1)) % vocabulary
        return {"tokens": tokens[:, :-1]}, tokens[:, 1:]

    return batch


def classify_images(classes: int, pixels: int) -> Callable[[Generator, int], Batch]:
    """Return a task: an image (n, 3, pixels, pixels) is the pattern of its label, (n,) int64, plus noise."""

    def batch(generator: Generator, samples: int) -> Batch:
        labels = torch.randint(classes, (samples,), generator=generator)
        # A pattern of 4 by 4 tiles, because memory for a pattern per pixel and class would be large.
        tiles = patterns(classes, 3, 4, 4)[labels]
        coarse = functional.interpolate(tiles, size=(pixels, pixels), mode="nearest")
        return {"pixels": coarse + torch.randn(samples, 3, pixels, pixels, generator=generator)}, labels

    return batch


def segment_images(classes: int, pixels: int) -> Callable[[Generator, int], Batch]:
    """Return a task: an image (n, 1, pixels, pixels) is the class of each pixel, (n, pixels, pixels) int64, plus noise.

    A class fills tiles of a quarter of the image's side.
    """

    def batch(generator: Generator, samples: int) -> Batch:
        tiles = torch.randint(classes, (samples, 1, 4, 4), generator=generator).float()
        areas = functional.interpolate(tiles, size=(pixels, pixels), mode="nearest")
        noise = torch.randn(samples, 1, pixels, pixels, generator=generator)
        return {"pixels": areas + 0.5 * noise}, areas.squeeze(1).long()

    return batch
