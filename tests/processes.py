"""Whether processes have ended."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import psutil


@contextmanager
def none_left() -> Generator[None]:
    """Check that what this process has started in the block, and what that has, has ended when the block does."""
    before = set(below())
    yield
    assert set(below()) <= before


def below(pid: int | None = None) -> list[psutil.Process]:
    """Return what a process (None: this one) has started, and what that has."""
    return psutil.Process(pid).children(recursive=True)


def still_there(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return which of the processes have not ended after some time."""
    return psutil.wait_procs(list(processes), timeout=seconds)[1]
