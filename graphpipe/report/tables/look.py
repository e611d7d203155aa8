"""How all tables look: a line under the headings, no other lines, so that they fit a narrow terminal."""

from rich import box
from rich.table import Table


def new_table(title: str | None = None) -> Table:
    """Return an empty table."""
    padding = (0, 1, 0, 0)
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=padding, show_edge=False)
