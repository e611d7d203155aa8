"""The lock of a run's folder: two trainings that write to one folder would spoil it."""

import os
import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from graphpipe.errors import InvalidInput
from graphpipe.files.lock import acquire, release
from graphpipe.files.regular_file import open_regular
from graphpipe.training.run_folder.run_folder import RunFolder

POLL_SECONDS = 0.2


@dataclass(slots=True)
class RunLock:
    """Locks a run's folder for this process, from `take` to the end of the block."""

    _file: int | None = None

    def take(self, folder: RunFolder, wait_seconds: float = 0.0) -> None:
        """Lock the folder if it exists and is not locked here already. File systems without locks are accepted.

        Args:
            folder: of the run.
            wait_seconds: how long to wait for another process that holds the lock.

        Raises:
            InvalidInput: another process holds the lock, or its file is a link.
        """
        if self._file is not None or not folder.path.is_dir():
            return
        try:
            file = open_regular(folder.lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InvalidInput(f"cannot be written to: {error.strerror}", where=str(folder.lock)) from None
        end = time.monotonic() + wait_seconds
        while acquire(file) is False:
            if time.monotonic() > end:
                owner = os.pread(file, 1000, 0).decode(errors="replace").strip()
                os.close(file)
                raise InvalidInput(
                    f"another training writes to this run{f' ({owner})' if owner else ''}",
                    where=str(folder),
                    remedy="Wait until it has ended, or stop it.",
                )
            time.sleep(POLL_SECONDS)
        self._file = file
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __enter__(self) -> Self:
        """Begin the block. Nothing is locked yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Release the lock."""
        if self._file is not None:
            release(self._file)
            self._file = None
