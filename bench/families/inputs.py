"""The inputs of tiny models: each is drawn by one of a few functions, with a fixed seed, one row for each sample."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SAMPLES, LENGTH, WORDS = 4, 7, 60
IMAGE = 60
"""The word in place of which a feature of an image or a sound comes."""


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def words() -> Tensor:
    """Return texts, [samples, length]."""
    return torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=_seed())


def normal(*shape: int) -> Tensor:
    """Return values of a normal distribution, [samples, *shape]."""
    return torch.randn(SAMPLES, *shape, generator=_seed())


def patches(count: int, *shape: int) -> Tensor:
    """Return the patches of all samples in one dimension, [samples * count, *shape]."""
    return torch.randn(SAMPLES * count, *shape, generator=_seed())


def placed(features: int) -> Tensor:
    """Return texts with places for features after their first word, [samples, length + 1 + features]."""
    return torch.cat([words()[:, :1], torch.full((SAMPLES, features), IMAGE), words()], 1)


def marked(features: int) -> Tensor:
    """Return texts with places for features between two words that mark them, [samples, features + 8]."""
    text = torch.randint(3, 50, (SAMPLES, features + 8), generator=_seed())
    text[:, 1], text[:, 2 : 2 + features], text[:, 2 + features] = 58, IMAGE, 59
    return text


def marked_labels(features: int) -> Tensor:
    """Return `marked` texts, whose marks and places do not count, [samples, features + 8]."""
    text = marked(features)
    text[:, 1 : 3 + features] = -100
    return text


def codes(books: int) -> Tensor:
    """Return texts beside the same codes of so many codebooks, [samples, length, 1 + books]."""
    return torch.cat([words()[..., None], torch.stack([words() % 16] * books, -1)], -1)


def alike(values: Sequence[Any], *shape: int) -> Tensor:
    """Return the same values for each sample, [samples, *shape, *shape of the values]."""
    found = torch.tensor(values)
    return found.repeat(SAMPLES, *shape, *([1] * found.dim()))


def places(rows: int) -> Tensor:
    """Return the row and column of each patch of square images, [samples, rows * rows, 2]."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(rows)).repeat(SAMPLES, 1, 1)


def features_in_time(length: int) -> Tensor:
    """Return one feature of each time, [samples, length, 1]."""
    return torch.linspace(0, 1, length).repeat(SAMPLES, 1)[..., None]


def full(value: float, *shape: int) -> Tensor:
    """Return one value everywhere, of its own type, [samples, *shape]."""
    return torch.full((SAMPLES, *shape), value)


DRAWS: Mapping[str, Callable[..., Tensor]] = {
    "words": words,
    "twice": lambda: torch.cat([words(), words()], 1),
    "pairs": lambda: torch.stack([words(), words()], -1),
    "characters": lambda: torch.cat([words(), words(), words()], 1)[:, :16],
    "normal": normal,
    "uniform": lambda *shape: torch.rand(SAMPLES, *shape, generator=_seed()),
    "patches": patches,
    "placed": placed,
    "marked": marked,
    "marked_labels": marked_labels,
    "codes": codes,
    "alike": alike,
    "places": places,
    "patches_with_places": lambda: torch.cat([places(4).float(), normal(16, 8)], -1),
    "features_in_time": features_in_time,
    "classes": lambda: torch.arange(SAMPLES) % 2,
    "full": full,
}
"""By the name that the table calls them."""


def drawn(table: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
    """Return the inputs of a row of the table, each given as a name in `DRAWS` with its arguments."""
    return {name: DRAWS[draw[0]](*draw[1:]) for name, draw in table.items()}
