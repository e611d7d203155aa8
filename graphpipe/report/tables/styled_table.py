"""A table that fits the terminal. If it is too wide, it leaves out whole columns and names them in a line below.

A column cut to `sam…` is useless, so no column is cut before the least important ones are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text


def new_table(title: str | None = None) -> Table:
    """Return an empty table."""
    padding = (0, 1, 0, 0)
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=padding, show_edge=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a `FittingTable`."""

    heading: str
    right: bool = True
    """Whether cells are aligned to the right, as numbers are."""
    wraps: bool = False
    """Whether text may be broken into lines at spaces."""
    spare: int = 0
    """Order in which columns are left out: the one with the highest number first. A column with 0 always stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTable:
    """Columns, and rows with a cell for each column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw the columns that fit. If those that always stay do not fit either, they are cut."""
        kept = list(range(len(self.columns)))
        while self._least_width(kept) > options.max_width:
            spare = max(kept, key=lambda number: self.columns[number].spare)
            if not self.columns[spare].spare:
                break
            kept.remove(spare)
        yield self._table(kept)
        missing = [column.heading for number, column in enumerate(self.columns) if number not in kept]
        if missing:
            yield Text(f"no room for: {', '.join(missing)} (widen the terminal)", style="dim")

    def _least_width(self, kept: Sequence[int]) -> int:
        # `new_table` puts a blank beside every cell, and one between two cells.
        return sum(self._widest(number) + 2 for number in kept) - 1

    def _widest(self, number: int) -> int:
        """Return the width of the longest part that cannot be broken: a line, or a word."""
        column = self.columns[number]
        texts = [column.heading, *(row[number] for row in self.rows if number < len(row))]
        pieces = [piece for text in texts for piece in (text.split() if column.wraps else text.splitlines())]
        return max(map(cell_len, pieces))

    def _table(self, kept: Sequence[int]) -> Table:
        table = new_table(self.title)
        for column in (self.columns[number] for number in kept):
            justify = "right" if column.right else "left"
            table.add_column(column.heading, justify=justify, no_wrap=not column.wraps)
        for row in self.rows:
            table.add_row(*(row[number] if number < len(row) else "" for number in kept))
        return table
