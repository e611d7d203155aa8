"""Finds processes that are still running."""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from fork_server import GRACE_SECONDS


@contextmanager
def all_processes_end() -> Generator[None]:
    """Check at the end of the block that every process started in it has ended: descendants, and forks of the server.

    The parent of a fork is the server, but its working directory is that of the program that asked for it. The server
    ends the fork of a program that was killed, which takes `GRACE_SECONDS` if the fork is stopped.
    """
    before, forks = set(descendants()), set(_in_this_folder())
    yield
    assert set(descendants()) <= before
    assert still_running({*_in_this_folder()} - forks, 3 * GRACE_SECONDS) == []


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


def _in_this_folder() -> list[psutil.Process]:
    """Return the processes whose working directory is this one or a folder in it."""
    here, found = Path.cwd(), list[psutil.Process]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended, or belongs to another user.
            if Path(process.cwd()).is_relative_to(here):
                found.append(process)
    return found
