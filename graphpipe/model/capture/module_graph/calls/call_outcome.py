"""What a call of an opaque submodule returns, for every number of samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.torch_private import TreeSpec

SAMPLES = (8, 63)
"""The two numbers of samples: how a size differs between the runs tells how it grows with samples."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size as a polynomial of the number of samples."""

    constant: int
    linear: int
    square: int

    @staticmethod
    def of(few: int, many: int) -> "Size":
        """Return the polynomial of one term that has these values at SAMPLES, or else the straight line.

        Raises:
            ValueError: neither exists with whole numbers.
        """
        low, high = SAMPLES
        if few == many:
            return Size(few, 0, 0)
        if few * high == many * low and few % low == 0:
            return Size(0, few // low, 0)
        if few * high**2 == many * low**2 and few % low**2 == 0:
            return Size(0, 0, few // low**2)
        slope, rest = divmod(many - few, high - low)
        if rest:
            raise ValueError(f"{few} and {many}")
        return Size(few - slope * low, slope, 0)

    def at(self, samples: Any) -> Any:
        """Return the size for a number of samples, which may be symbolic; `samples` is not read for a constant."""
        # Symbolic arithmetic is slow, so nothing is multiplied by one and no zero is added.
        if not self.linear and not self.square:
            return self.constant
        found = samples * samples * self.square if self.square else samples
        found = found * self.linear if self.linear > 1 else found
        return found + self.constant if self.constant else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A tensor that a call returns, without data."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype

    @staticmethod
    def of(few: Tensor, many: Tensor) -> "Form":
        """Return the form of a tensor that was returned for each number of SAMPLES.

        Raises:
            ValueError: a size is no polynomial of one term, and no straight line.
        """
        shape, strides = (
            tuple(Size.of(one, other) for one, other in zip(*pair, strict=True))
            for pair in ((few.shape, many.shape), (few.stride(), many.stride()))
        )
        return Form(shape=shape, strides=strides, dtype=few.dtype)

    def empty(self, samples: Any, device: torch.device) -> Tensor:
        """Return a tensor of this form."""
        shape, strides = ([size.at(samples) for size in sizes] for sizes in (self.shape, self.strides))
        return torch.empty_strided(shape, strides, dtype=self.dtype, device=device)

    @property
    def samples_first(self) -> bool:
        """Whether the first dimension is samples."""
        return bool(self.shape) and self.shape[0] == Size(0, 1, 0)

    @property
    def grows(self) -> bool:
        """Whether a size depends on the number of samples."""
        return any(size.linear or size.square for size in (*self.shape, *self.strides))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What a call of an opaque submodule returns, and how it treats its arguments."""

    leaves: tuple[Any, ...]
    """The leaves of the result: a `Form` for every tensor, and constants."""
    spec: TreeSpec
    written: tuple[tuple[int, Form], ...]
    """The tensor arguments, by their position among these, that it wrote into."""
    unread: tuple[int, ...]
    """The tensor arguments whose values it does not read: only their shape, dtype or device."""
    repeatable: bool
    """Whether it has no parameters, draws no random numbers and writes into nothing, so that it may run twice."""
    passed: Mapping[int, int]
    """The leaves of the result that are tensor arguments, by their position among these."""
    beside: frozenset[int]
    """The leaves that cannot be sent between stages because they do not have samples in front, and that are cheap to
    compute: T5's first layer returns a position bias, which all layers read."""

    statistic: str = ""
    """The operator in it that mixes samples, if its results depend on that; or else empty."""
    changed: tuple[str, ...] = ()
    """The model's parameters that it writes into, or replaces, in training."""

    @property
    def forms(self) -> list[Form]:
        """The tensors among the leaves, then the written arguments."""
        return [*(leaf for leaf in self.leaves if isinstance(leaf, Form)), *(form for _, form in self.written)]
