"""Work done side by side, each piece in a process of its own so that a time limit holds and a crash stays alone."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, NamedTuple


class End(NamedTuple):
    """How a piece of work ended."""

    how: Literal["done", "raised", "timeout", "died"]
    what: object = None
    """What the work returned, the exception it raised, or the exit code of its process."""


@dataclass(slots=True)
class _Runner:
    number: int
    process: BaseProcess
    answers: Connection
    deadline: float = inf
    """Set when the process says that it has started: the clock runs for the work alone."""

    def end(self) -> End | None:
        """Return how the work ended, None if it has not: call it when there is an answer, or the time is up."""
        try:
            while self.answers.poll():
                answer = self.answers.recv()
                if isinstance(answer, End):
                    return answer
                self.deadline = time.monotonic() + answer
        except EOFError:
            self.process.join()
            return End("died", self.process.exitcode)
        return End("timeout") if time.monotonic() >= self.deadline else None

    def stop(self) -> None:
        """Leave no process behind."""
        self.process.kill()
        self.process.join()
        self.answers.close()


def race(
    names: Sequence[str],
    work: Callable[[str], object],
    *,
    timeout: float,
    at_once: int | None = None,
    ended: Callable[[str], None] = lambda name: None,
) -> list[End]:
    """Return how the work on each name ended, in their order.

    Args:
        names: what to work on.
        work: picklable, as are its results and exceptions.
        timeout: seconds for each, without the start of its process.
        at_once: processes that run at the same time; None: one per core.
        ended: told the name when a piece of work has ended.
    """
    ends: dict[int, End] = {}
    running: list[_Runner] = []
    with ExitStack() as stack:
        while len(ends) < len(names):
            while len(running) < (at_once or os.cpu_count() or 1) and len(ends) + len(running) < len(names):
                running.append(_start(len(ends) + len(running), names, work, timeout))
                stack.callback(running[-1].stop)
            nearest = min(runner.deadline for runner in running)
            wait(
                [runner.answers for runner in running], None if nearest == inf else max(0.0, nearest - time.monotonic())
            )
            for runner in list(running):
                if (end := runner.end()) is not None:
                    runner.stop()
                    running.remove(runner)
                    ends[runner.number] = end
                    ended(names[runner.number])
    return [ends[number] for number in range(len(names))]


def _start(number: int, names: Sequence[str], work: Callable[[str], object], timeout: float) -> _Runner:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, work, names[number], timeout), daemon=True)
    process.start()
    theirs.close()
    return _Runner(number, process, ours)


def _answer(answers: Connection, work: Callable[[str], object], name: str, timeout: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted too, and ends this process.
    answers.send(timeout)  # It has started.
    try:
        end = End("done", work(name))
    except Exception as error:
        end = End("raised", error)
    answers.send(end)
