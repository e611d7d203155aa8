"""A table that fits: where the terminal is too narrow it leaves out whole columns, the least needed first, and says so.

Columns cut to `sam…` tell nothing; a sentence that names what is missing tells where to look.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from graphpipe.report.tables.look import new_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table that fits."""

    heading: str
    right: bool = True
    """Numbers stand to the right."""
    wraps: bool = False
    """May be broken into lines, at spaces."""
    spare: int = 0
    """Left out first where it is highest; 0 is never left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTable:
    """Columns, and rows with a cell for each of them."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw the columns that there is room for; what never goes is cut in a terminal narrower still."""
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
        # A blank beside every cell, and one between two of them: `new_table`.
        return sum(self._widest(number) + 2 for number in kept) - 1

    def _widest(self, number: int) -> int:
        """Return the width of what cannot be broken in a column: its longest line, or word."""
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
