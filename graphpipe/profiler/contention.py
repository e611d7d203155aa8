"""Company while operators are measured: ranks on one machine share its caches, its memory and sometimes its cores.

Alone, an operator runs up to half as long again as it does beside other ranks, even where each has a core of its own:
two cores of a machine may be the two threads of one, and both use the same path to memory.
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

CROWD = 2
"""Processes per core beyond which more change nothing but how long each of them waits."""


@contextmanager
def in_company(others: int, work: Callable[[Callable[[], object]], object]) -> Generator[None]:
    """Let copies of this process work while the block runs; only Linux can copy a process that has torch loaded.

    Args:
        others: how many.
        work: what each does, again and again; it calls its argument every now and then.
    """
    copies = [_copy(work) for _ in range(others)] if sys.platform == "linux" else []
    try:
        yield
    finally:
        for copy in copies:
            with suppress(ProcessLookupError, ChildProcessError):  # somebody else waited for it
                os.kill(copy, signal.SIGKILL)
                os.waitpid(copy, 0)


def _copy(work: Callable[[Callable[[], object]], object]) -> int:
    original = os.getpid()
    with warnings.catch_warnings():
        # From Python 3.12 on it warns that other threads stop in the copy; what these hold, the copy does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if copy:
        return copy
    with suppress(BaseException):  # the copy must not go on with what its original is in the middle of
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        while True:
            work(lambda: _end_without(original))
    os._exit(0)


def _end_without(original: int) -> None:
    if os.getppid() != original:
        os._exit(0)
