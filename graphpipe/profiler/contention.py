"""Contention during a measurement: ranks on one machine share its caches, its memory and sometimes its cores.

An operator that runs without other ranks can be up to 1.5 times as fast as beside them, even where each rank has a
core. Two cores may be two threads of one physical core, and all cores share one path to memory.
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

MOST_PROCESSES_PER_CORE = 1
"""More processes per core only make each of them wait longer: the operators of the digits example took 40 ms forward
and 64 ms backward with one process on each of two cores, and 43 and 68 ms with two, in twice the time."""


@contextmanager
def under_contention(copies: int, work: Callable[[Callable[[], object]], object]) -> Generator[None]:
    """Run copies of this process while the block runs. Only Linux can copy a process that has loaded torch.

    Args:
        copies: how many.
        work: what each copy repeats until the block ends; it must call its argument from time to time.
    """
    started = [_copy(work) for _ in range(copies)] if sys.platform == "linux" else []
    try:
        yield
    finally:
        for copy in started:
            with suppress(ProcessLookupError, ChildProcessError):  # other code may have waited for it
                os.kill(copy, signal.SIGKILL)
                os.waitpid(copy, 0)


def _copy(work: Callable[[Callable[[], object]], object]) -> int:
    original = os.getpid()
    with warnings.catch_warnings():
        # Since Python 3.12, fork warns that other threads stop in the copy. The copy needs nothing that they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if copy:
        return copy
    with suppress(BaseException):  # the copy must not continue with the code of its original
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        while True:
            work(lambda: _exit_without(original))
    os._exit(0)


def _exit_without(original: int) -> None:
    if os.getppid() != original:
        os._exit(0)
