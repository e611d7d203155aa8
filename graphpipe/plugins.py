"""What installed packages add to GraphPipe: the objects that they declare as entry points."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Protocol, TypeVar

from graphpipe.errors import InvalidInput

T = TypeVar("T")


class Named(Protocol):
    """What is registered under a name of its own."""

    @property
    def name(self) -> str:
        """As users write it."""
        ...


N = TypeVar("N", bound=Named)


def register_by_name(known: dict[str, N], item: N, word: str) -> None:
    """Add an item to those that are known by name. The same item may be added again.

    Args:
        known: by name.
        item: to add.
        word: what it is, such as `planner`.

    Raises:
        InvalidInput: another item has this name.
    """
    if known.get(item.name, item) != item:
        what, where = f"another {word} has this name", f"{word} '{item.name}'"
        raise InvalidInput(what, where=where, remedy="Choose another name.")
    known[item.name] = item


def load_plugins(group: str, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Import the objects of one group of entry points, and yield the name and the object of each.

    Args:
        group: of entry points, such as `graphpipe.schedulers`.
        kind: the type of every object in it.

    Raises:
        InvalidInput: an entry point cannot be imported, or is an object of another type.
    """
    for point in entry_points(group=group):
        where, remedy = f"entry point '{point.name}' of {group}", "Repair or uninstall the package that declares it."
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise InvalidInput(f"'{point.value}' cannot be imported: {error}", where=where, remedy=remedy) from None
        if not isinstance(found, kind):
            what = f"'{point.value}' is a {type(found).__name__}, must be a {kind.__name__}"
            raise InvalidInput(what, where=where, remedy=remedy)
        yield point.name, found
