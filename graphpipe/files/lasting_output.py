"""Output that may go away: a training goes on when nobody reads what it prints any more.

graphpipe train ... 2>&1 | head        the reader ends
graphpipe train ... > /dev/full        the disk is full
graphpipe train ... >&-                there was no output to begin with
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingStream:
    """A text stream that prints nothing more once it cannot be written.

    Args:
        stream: of the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, if that is possible."""
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write lines, if that is possible."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, if that is possible."""
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        # What is still in a buffer goes to nowhere, too.
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, self._stream.fileno())
        finally:
            os.close(nothing)


def open_missing_streams() -> None:
    """Give this process the streams that it was started without.

    Otherwise the next file that is opened would get the number of a missing stream, and be written into.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def lasting_output() -> Generator[None]:
    """While inside, output that goes away is no error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = LastingStream(before[0]), LastingStream(before[1])  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        sys.stdout, sys.stderr = before
