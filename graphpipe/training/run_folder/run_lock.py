"""Locks on files. The system takes them back when their owner ends, however it ends: none is ever left over.

What a process starts does not inherit them; a copy of it (`os.fork`) does, until it ends or the owner lets go.
"""

import errno
import fcntl
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from graphpipe.errors import InvalidInput

LOCK = ".lock"
"""The file in a run's folder that is locked. It stays: to remove it would let two own a folder."""

POLL_SECONDS = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without locks say."""


def acquire(file: int, *, wait: bool = False) -> bool | None:
    """Lock an open file.

    Args:
        file: its descriptor.
        wait: until it is free.

    Returns:
        Whether it is locked; None where the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def release(file: int) -> None:
    """Let go of a file, for copies of this process too, and close it."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(file)


@dataclass(slots=True)
class RunLock:
    """Makes a run's folder this process's own, from `take` to the end of the block: two writers spoil it."""

    _file: int | None = None

    def take(self, directory: Path, patience_seconds: float = 0.0) -> None:
        """Take a folder, once; one that is not there is nobody's. Where its file system has no locks, go on without.

        Args:
            directory: of the run.
            patience_seconds: how long another process that still has it may take to end.

        Raises:
            InvalidInput: another process has it.
        """
        if self._file is not None or not directory.is_dir():
            return
        try:
            file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidInput(f"cannot be written to: {error.strerror}", where=str(directory / LOCK)) from None
        end = time.monotonic() + patience_seconds
        while acquire(file) is False:
            if time.monotonic() > end:
                owner = os.pread(file, 1000, 0).decode(errors="replace").strip()
                os.close(file)
                raise InvalidInput(
                    f"another training writes to this run{f' ({owner})' if owner else ''}",
                    where=str(directory),
                    remedy="Wait until it has ended, or stop it.",
                )
            time.sleep(POLL_SECONDS)
        self._file = file
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __enter__(self) -> Self:
        """Begin; nothing is taken yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Let go of what was taken."""
        if self._file is not None:
            release(self._file)
            self._file = None
