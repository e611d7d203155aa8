"""Finds processes that are still running."""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def all_processes_end() -> Generator[None]:
    """Check at the end of the block that every descendant process started in it has ended."""
    before = set(descendants())
    yield
    assert set(descendants()) <= before


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the children of a process (None: of this one), their children, and so on."""
    return psutil.Process(pid).children(recursive=True)


def running_processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes with these ids that exist."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def still_running(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes that have not ended after this many seconds. A zombie has ended."""
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
