"""The random generators that a user's data pipeline may draw from: where they are, and putting them back there.

Dropout needs none of this: its numbers depend on seed, step and task alone (see `rng`).
"""

import random
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import ConfigDict, Field

from graphpipe.errors import InvalidInput

_WORDS = 624
"""Of the Mersenne Twister, which all three are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of the process-wide generators of torch (CPU), Python and NumPy, as a JSON document can hold it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    torch: str
    """Hexadecimal bytes."""
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, str, Annotated[int, Field(ge=0, le=_WORDS)], int, float]
    """Kind of generator, hexadecimal bytes, position, and the Gaussian number it has in store, if any."""

    def __post_init__(self) -> None:
        try:
            _give(self, torch.Generator(), random.Random(), np.random.RandomState())
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise InvalidInput(f"is no state of a random generator: {error}", where="random") from None

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
        """Put the generators where they were."""
        _give(self, torch.default_generator, random, np.random)


def _give(state: RandomState, of_torch: torch.Generator, of_python: Any, of_numpy: Any) -> None:
    kind, key, position, stored, gaussian = state.numpy
    of_torch.set_state(torch.frombuffer(bytearray.fromhex(state.torch), dtype=torch.uint8))
    of_python.setstate(state.python)
    numbers = np.frombuffer(bytes.fromhex(key), dtype="<u4")
    of_numpy.set_state((kind, numbers, position, stored, gaussian))


def _as_python(state: tuple[Any, ...]) -> tuple[int, tuple[int, ...], float | None]:
    version, numbers, gaussian = state
    return version, tuple(numbers), gaussian
