"""Work that takes a while, and what shows it.

A room says what it does meanwhile, and how much of that is done. The command line shows it on a terminal. A program
that calls the rooms sees nothing, unless it brings a display of its own.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

Advance = Callable[[float], None]
"""Takes the share of the work that is done, from 0 to 1."""
Display = Callable[[str], AbstractContextManager[Advance]]
"""Takes what is being done. Its context lasts as long as the work."""


def _ignore(share: float) -> None:
    del share


@contextmanager
def _nothing(what: str) -> Generator[Advance]:
    del what
    yield _ignore


_DISPLAY = ContextVar[Display]("display", default=_nothing)


def waiting(what: str) -> AbstractContextManager[Advance]:
    """Return a context in which work is shown as `what` ("capturing the model"), and that gives its `Advance`."""
    return _DISPLAY.get()(what)


@contextmanager
def shown_by(display: Display) -> Generator[None]:
    """Show with `display` what takes a while inside the block."""
    before = _DISPLAY.set(display)
    try:
        yield
    finally:
        _DISPLAY.reset(before)
