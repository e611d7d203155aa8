"""The progress that a person sees while the ranks train: a bar on a terminal, a few lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from graphpipe.units import format_seconds

LINES = 10
"""Number of lines for a whole training if there is no terminal."""


class TrainProgress:
    """Shows steps done, loss, samples per second and time left on standard error.

    Args:
        steps: number of steps of the whole training.
        shown: False on every rank but one.
        done: number of steps done before, if the run was resumed.
    """

    def __init__(self, steps: int, *, shown: bool, done: int = 0) -> None:
        self.steps = steps
        self._done = self._before = done
        self._shown = shown
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
        )
        self._task = self._bar.add_task("training", total=steps, completed=done, figures="")

    def advance(self, loss: float, samples_per_second: float) -> None:
        """Count one more step."""
        self._done += 1
        figures = f"loss {loss:.4f}  {samples_per_second:,.1f} samples/s"
        self._bar.update(self._task, advance=1, figures=figures)
        every = max(1, self.steps // LINES)
        if (
            self._shown
            and self._bar.disable
            and (self._done % every == 0 or self._done in (self._before + 1, self.steps))
        ):
            left = f"{format_seconds(self._seconds_left())} left"
            print(f"step {self._done}/{self.steps}  {figures}  {left}", file=sys.stderr, flush=True)

    def _seconds_left(self) -> float:
        each = (time.monotonic() - self._began) / (self._done - self._before)
        return each * (self.steps - self._done)

    def __enter__(self) -> Self:
        """Show the bar, and start the clock."""
        self._began = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop updating the bar."""
        self._bar.stop()
