"""Kills a rank when its launcher dies, so that no orphans remain.

The launcher holds the lock of a file while it waits for its ranks. In every rank, a thread waits for the same lock: if
it gets the lock, the launcher is gone. On Linux the kernel also kills a rank whose parent ends (`PR_SET_PDEATHSIG`),
even if the rank is stopped or its threads cannot run. This works only if the launcher is the rank's direct parent.
"""

import ctypes
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from graphpipe.files.lock import acquire, release
from graphpipe.run.faults.rank_status import STATUS_FOLDER

_LOCK_FILE = "launcher"
"""A file in the folder that `STATUS_FOLDER` names; it holds the launcher's process id."""
_PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when the thread that started it ends. The launcher's thread outlives its
ranks."""


@contextmanager
def hold_launcher_lock(folder: Path) -> Generator[None]:
    """Hold the lock that the ranks started in the block wait for.

    Args:
        folder: the ranks' folder, which they find in `STATUS_FOLDER`.
    """
    file = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    acquire(file)
    os.write(file, str(os.getpid()).encode())
    try:
        yield
    finally:
        release(file)


def die_with_launcher() -> None:
    """Make this process end when its launcher does. If `launch` did not start it, do nothing."""
    folder = os.environ.get(STATUS_FOLDER)
    if folder is None or not (path := Path(folder) / _LOCK_FILE).exists():
        return
    if path.read_text() == str(os.getppid()):
        with suppress(AttributeError):  # other systems have no prctl
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_exit_after_launcher, args=(path,), daemon=True, name="graphpipe-parent-watch").start()


def _exit_after_launcher(path: Path) -> None:
    if acquire(os.open(path, os.O_RDWR), wait=True):
        os._exit(1)
