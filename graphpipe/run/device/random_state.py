"""The state of the process-wide random generators, from which a user's data pipeline may draw.

Dropout does not need it: its random numbers are computed from the seed, the step and the task (see `run.device.rng`).
"""

import random
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import ConfigDict, Field

from graphpipe.errors import InvalidInput

_WORDS = 624
"""Words in the state of the Mersenne Twister, which all three generators are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of the process-wide generators of torch (CPU), Python and NumPy, in a form that JSON can hold."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    torch: str
    """The state of torch's generator, as hexadecimal bytes."""
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, str, Annotated[int, Field(ge=0, le=_WORDS)], int, float]
    """Kind of generator, hexadecimal bytes, position, whether a Gaussian number is stored, and that number."""

    def __post_init__(self) -> None:
        try:
            _set_generators(self, torch.Generator(), random.Random(), np.random.RandomState())
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise InvalidInput(f"is not the state of a random generator: {error}", where="random") from None

    @staticmethod
    def now() -> "RandomState":
        """Return the present state of the generators."""
        kind, key, position, stored, gaussian = cast("tuple[Any, ...]", np.random.get_state())
        return RandomState(
            torch=bytes(torch.get_rng_state().tolist()).hex(),
            python=_python_state(random.getstate()),
            numpy=(kind, np.asarray(key, dtype="<u4").tobytes().hex(), position, stored, gaussian),
        )

    def restore(self) -> None:
        """Put the generators into this state."""
        _set_generators(self, torch.default_generator, random, np.random)


def _set_generators(state: RandomState, of_torch: torch.Generator, of_python: Any, of_numpy: Any) -> None:
    kind, key, position, stored, gaussian = state.numpy
    of_torch.set_state(torch.frombuffer(bytearray.fromhex(state.torch), dtype=torch.uint8))
    of_python.setstate(state.python)
    words = np.frombuffer(bytes.fromhex(key), dtype="<u4")
    of_numpy.set_state((kind, words, position, stored, gaussian))


def _python_state(state: tuple[Any, ...]) -> tuple[int, tuple[int, ...], float | None]:
    version, words, gaussian = state
    return version, tuple(words), gaussian
