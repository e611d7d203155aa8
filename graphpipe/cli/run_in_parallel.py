"""Runs a function on several arguments, each in a process of its own, so that each has a time limit and may crash."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Literal, NamedTuple


class End(NamedTuple):
    """How one call ended."""

    how: Literal["done", "raised", "timeout", "died"]
    what: object = None
    """The value that the call returned, the exception that it raised, or the exit code of its process."""


@dataclass(slots=True)
class _Runner:
    number: int
    process: BaseProcess
    messages: Connection
    deadline: float = inf
    """Set when the process says that it has started, so that its start does not count."""

    def end(self) -> End | None:
        """Return how the call ended, or None if it has not. Call this after a message, or after the deadline."""
        try:
            while self.messages.poll():
                message = self.messages.recv()
                if isinstance(message, End):
                    return message
                self.deadline = time.monotonic() + message
        except EOFError:
            self.process.join()
            return End("died", self.process.exitcode)
        return End("timeout") if time.monotonic() >= self.deadline else None

    def stop(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        self.process.join()
        self.messages.close()


def run_in_parallel(
    names: Sequence[str],
    work: Callable[[str], object],
    *,
    timeout: float,
    at_once: int | None = None,
    imports: Sequence[str] = (),
    on_end: Callable[[str, End], None] = lambda name, end: None,
) -> list[End]:
    """Call `work` with each name, and return how each call ended, in the order of names.

    Args:
        names: the arguments.
        work: can be pickled, as can its results and exceptions.
        timeout: seconds for each call. The start of its process does not count.
        at_once: number of processes at the same time. None: one per core.
        imports: modules that each call needs sooner or later. They are imported once, and not by every process.
        on_end: called with a name when its call has ended, and how.
    """
    context = get_context("forkserver")
    function: Callable[..., object] = work.func if isinstance(work, partial) else work
    context.set_forkserver_preload([function.__module__, *imports])
    ends: dict[int, End] = {}
    running: list[_Runner] = []
    with ExitStack() as stack:
        while len(ends) < len(names):
            while len(running) < (at_once or os.cpu_count() or 1) and len(ends) + len(running) < len(names):
                number = len(ends) + len(running)
                running.append(_start(context, number, partial(work, names[number]), timeout))
                stack.callback(running[-1].stop)
            nearest = min(runner.deadline for runner in running)
            limit = None if nearest == inf else max(0.0, nearest - time.monotonic())
            wait([runner.messages for runner in running], limit)
            for runner in list(running):
                if (end := runner.end()) is not None:
                    runner.stop()
                    running.remove(runner)
                    ends[runner.number] = end
                    on_end(names[runner.number], end)
    return [ends[number] for number in range(len(names))]


def _start(context: ForkServerContext, number: int, call: Callable[[], object], timeout: float) -> _Runner:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, call, timeout), daemon=True)
    process.start()
    sender.close()
    return _Runner(number, process, receiver)


def _call(messages: Connection, call: Callable[[], object], timeout: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted too, and kills this process.
    messages.send(timeout)  # This process has started.
    try:
        end = End("done", call())
    except Exception as error:
        end = End("raised", error)
    messages.send(end)
