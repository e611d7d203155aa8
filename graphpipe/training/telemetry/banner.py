"""What a person sees when training starts: who does what, and whether it will fit in memory."""

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from graphpipe.run.comm.rank_placement import SeatLayout
from graphpipe.training.telemetry.readiness import Readiness, shortages
from graphpipe.units import format_bytes

WIDTH = 160
"""Where there is no terminal."""


def show_banner(ready: Sequence[Readiness]) -> None:
    """Print a row per rank on standard error, and a warning for every place that will be short of memory."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH)
    console.print(_table(ready), highlight=False, markup=False)
    for sentence in shortages(ready):
        console.print(f"warning: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _table(ready: Sequence[Readiness]) -> Table:
    table = Table(title="Ranks", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("rank", "place", "device", "stages", "micro-batch"):
        table.add_column(heading)
    table.add_column("memory predicted", justify="right")
    table.add_column("available", justify="right")
    for rank in ready:
        seats = rank.layout.seats
        predicted = rank.predicted_bytes
        table.add_row(
            str(rank.layout.rank),
            rank.place,
            ", ".join(dict.fromkeys(seat.device for seat in seats)),
            ", ".join(map(_seat, seats)),
            ", ".join(map(_micro_batch, seats)),
            "-" if predicted is None else format_bytes(predicted),
            format_bytes(rank.available_bytes),
        )
    return table


def _seat(seat: SeatLayout) -> str:
    return f"{seat.stage} (replica {seat.replica + 1} of {seat.degree})" if seat.degree > 1 else seat.stage


def _micro_batch(seat: SeatLayout) -> str:
    return f"{seat.micro_batch} / {seat.degree}" if seat.degree > 1 else str(seat.micro_batch)
