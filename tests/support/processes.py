"""Whether processes have ended."""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

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


def living(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes of these numbers that have not ended."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def still_there(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return which of the processes have not ended after some time; one that nobody has waited for yet has."""
    end = time.monotonic() + seconds
    left = [process for process in processes if _runs(process)]
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = [process for process in left if _runs(process)]
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
