"""Some combinations of parameters, in which each value meets each other one, and the rest for `make test-slow`."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def latin_square(*parameters: Iterable[Any]) -> list[Any]:
    """Return all combinations of values for `parametrize`, of which those outside of a Latin square are slow.

    Of three parameters, each pair of values is in the square. Of two, each value is. A value that is a tuple stands for
    several arguments.

    Args:
        parameters: the values of each. The last one has the fewest.
    """
    lists = [[*values] for values in parameters]
    assert len(lists[-1]) == min(map(len, lists))
    found: list[Any] = []
    for places in product(*(range(len(values)) for values in lists)):
        chosen = [values[place] for values, place in zip(lists, places, strict=True)]
        arguments = [each for value in chosen for each in (value if isinstance(value, tuple) else (value,))]
        quick = sum(places) % len(lists[-1]) == 0
        found.append(pytest.param(*arguments, marks=[] if quick else [pytest.mark.slow]))
    return found
