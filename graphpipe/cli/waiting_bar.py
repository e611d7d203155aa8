"""What a person sees on a terminal while something takes a while: a spinner, or a bar with the time left."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from graphpipe.waiting import Advance


class _Left(TimeRemainingColumn):
    """The time left, once it is known how much is done."""

    def render(self, task: Task) -> Text:
        return super().render(task) + " left" if task.completed else Text()


@contextmanager
def waiting_bar(what: str) -> Generator[Advance]:
    """Show on standard error what is being done, if that is a terminal. The line is removed at the end."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        _Left(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # otherwise what the user's code prints would leave its file or pipe
        refresh_per_second=4,  # measurements go on beside it
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task(what, total=None)
    with bar:
        yield lambda share: bar.update(task, total=1.0, completed=share)
