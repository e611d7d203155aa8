"""Random numbers that depend on the name of the parameter they are written into, and on nothing else.

Whatever else a rank holds, and in which order it is filled, a parameter gets the same values. Numbers that are drawn
before they are put into a parameter depend on the submodule that draws them.
"""

import random
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from graphpipe.model.torch_private import DispatchMode, Operator, is_random, memory_key, written_arguments
from graphpipe.run.device.random_state import RandomState


@final
class PlaceSeeds:
    """Seeds the process-wide generators for each draw, by where its numbers are needed, and how often they were.

    Args:
        seed: of the training.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._counts = seed, Counter[str]()

    def seed(self, place: str) -> None:
        """Seed torch's generator for the next operator that draws for a place, such as a parameter's name."""
        torch.default_generator.manual_seed(_number(f"{self._seed} {place} {self._counts[place]}"))
        self._counts[place] += 1

    def seed_python(self, place: str) -> None:
        """Seed the generators of Python and NumPy."""
        number = _number(f"{self._seed} {place}")
        random.seed(number)
        np.random.seed(number % 2**32)


@final
class NamedDraws(DispatchMode):
    """While it is entered, each operator that draws random numbers has a seed of its own.

    Args:
        seed: of the training.
    """

    names: dict[int, str]
    """The names of tensors, by `memory_key`."""
    written: set[str]
    """The names of the tensors that were written into."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.names, self.written = {}, set()
        self._seeds, self._place = PlaceSeeds(seed), ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, with its own seed if it draws."""
        given: dict[str, Any] = kwargs or {}
        owners = [self.names.get(memory_key(each)) for each in _written(func, args, given)]
        self.written.update(owner for owner in owners if owner is not None)
        if is_random(func):
            place = next((owner for owner in owners if owner is not None), f"submodule {self._place}")
            self._seeds.seed(place)
        return func(*args, **given)

    @contextmanager
    def drawn_by(self, path: str) -> Generator[None]:
        """While inside, numbers that are written into no known tensor, or drawn by NumPy or Python, are of a submodule.

        Args:
            path: of the submodule.
        """
        before, self._place = self._place, path
        self._seeds.seed_python(f"submodule {path}")
        try:
            yield
        finally:
            self._place = before


@contextmanager
def generators_kept() -> Generator[None]:
    """At the end of the block, the process-wide random generators are as they were."""
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore()


def _written(func: object, args: Any, kwargs: Mapping[str, object]) -> list[Tensor]:
    return written_arguments(func, args, kwargs) if isinstance(func, Operator) else []


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest())
