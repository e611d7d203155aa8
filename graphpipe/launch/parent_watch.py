"""A rank ends with the process that started it, however that process ends: nobody would stop it any more.

The launcher holds the lock of a file while it waits for its ranks, and in every rank a thread waits for that lock: to
get it means that the launcher is gone. On Linux the system also kills the rank by itself, even one that is stopped or
whose threads cannot run; it knows only whose child a process is, so it is not asked where something stands between.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from graphpipe.run.faults.rank_status import WATCH
from graphpipe.training.run_folder.run_lock import acquire, release

_FILE = "launcher"
"""In the folder that `WATCH` names; holds the launcher's process number."""
_PR_SET_PDEATHSIG = 1
"""Of Linux: what a process is sent when the thread that started it ends. The launcher's waits until its ranks have."""


@contextmanager
def lifeline(folder: Path) -> Generator[None]:
    """Hold what ranks that are started in the block live by.

    Args:
        folder: the ranks', which `WATCH` names to them.
    """
    file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
    acquire(file)
    os.write(file, str(os.getpid()).encode())
    try:
        yield
    finally:
        release(file)


def end_with_launcher() -> None:
    """Make this process end when its launcher does; nothing if `launch` did not start it."""
    folder = os.environ.get(WATCH)
    if folder is None or not (path := Path(folder) / _FILE).exists():
        return
    if sys.platform == "linux" and path.read_text() == str(os.getppid()):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_outlive, args=(path,), daemon=True, name="graphpipe-lifeline").start()


def _outlive(path: Path) -> None:
    if acquire(os.open(path, os.O_RDWR), wait=True):
        os._exit(1)
