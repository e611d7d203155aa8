"""The random generators that a user's data pipeline may draw from: where they are, and putting them back there.

Dropout needs none of this: its numbers depend on seed, step and task alone (see `rng`).
"""

import random
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from pydantic import ConfigDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of the process-wide generators of torch (CPU), Python and NumPy, as a JSON document can hold it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    torch: str
    """Hexadecimal bytes."""
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, str, int, int, float]
    """Kind of generator, hexadecimal bytes, position, and the Gaussian number it has in store, if any."""

    @staticmethod
    def now() -> "RandomState":
        """Return where the generators are."""
        kind, key, position, stored, gaussian = cast("tuple[Any, ...]", np.random.get_state())
        return RandomState(
            torch=bytes(torch.get_rng_state().tolist()).hex(),
            python=_as_python(random.getstate()),
            numpy=(kind, np.asarray(key, dtype="<u4").tobytes().hex(), position, stored, gaussian),
        )

    def restore(self) -> None:
        """Put the generators where they were.

        Raises:
            ValueError, RuntimeError: this is no state of theirs.
        """
        kind, key, position, stored, gaussian = self.numpy
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(self.torch), dtype=torch.uint8))
        random.setstate(self.python)
        numbers = np.frombuffer(bytes.fromhex(key), dtype="<u4")
        np.random.set_state((kind, numbers, position, stored, gaussian))


def _as_python(state: tuple[Any, ...]) -> tuple[int, tuple[int, ...], float | None]:
    version, numbers, gaussian = state
    return version, tuple(numbers), gaussian
