"""Room for deeply nested models: Python copies and traces modules inside each other by functions inside each other."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

_FRAMES = 40
"""Of a level: torch.export and `copy.deepcopy` call so many functions inside each other at most."""
_MOST = 2000
"""Levels at most, for which the stack of a thread has room."""


@contextmanager
def deep_enough(levels: int) -> Generator[None]:
    """While inside, modules that are nested so deeply can be copied and traced.

    Args:
        levels: of modules inside each other.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 1000 + _FRAMES * min(levels, _MOST)))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
