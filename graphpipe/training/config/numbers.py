"""Checks of numbers in a configuration, whose errors name the setting."""

import math

from graphpipe.errors import InvalidInput


def at_least_one(name: str, number: int) -> None:
    """Raise `InvalidInput` for a count below 1."""
    if number < 1:
        raise InvalidInput(f"is {number}, must be at least 1", where=name)


def positive(name: str, number: float) -> None:
    """Raise `InvalidInput` for a number that is not positive and finite."""
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(f"is {number}, must be positive and finite", where=name)


def not_negative(name: str, number: float) -> None:
    """Raise `InvalidInput` for a number that is negative, infinite or NaN."""
    if not (math.isfinite(number) and number >= 0):
        wanted = "must not be negative" if isinstance(number, int) else "must be finite, not negative"
        raise InvalidInput(f"is {number}, {wanted}", where=name)
