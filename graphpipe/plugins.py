"""What can be chosen by name: GraphPipe's own objects, and those that installed packages declare as entry points."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Protocol, TypeVar, final

from graphpipe.errors import InvalidInput, nearest

T = TypeVar("T")


class Named(Protocol):
    """What is registered under a name of its own."""

    @property
    def name(self) -> str:
        """As users write it."""
        ...


N = TypeVar("N", bound=Named)


@final
class Registry(Mapping[str, N]):
    """Items by name: GraphPipe's own, and those that a program registers. `all` and `find` add those of packages.

    Reading the entry points of packages takes milliseconds, so it happens only then, and once.

    Args:
        word: what an item is, such as `planner`.
        kind: the type of the items.
        group: of entry points, through which an installed package registers an item in every process:

                [project.entry-points."graphpipe.planners"]
                mine = "my_package.my_planner:MINE"
        own: items that are registered from the start.
        check: raises `InvalidInput` for an item that cannot be registered.
    """

    def __init__(
        self, word: str, kind: type[N], group: str, own: Iterable[N], check: Callable[[N], None] | None = None
    ) -> None:
        self.group = group
        self._word, self._kind, self._check = word, kind, check
        self._items = {item.name: item for item in own}
        self._complete = False

    def __getitem__(self, name: str) -> N:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def register(self, item: N) -> None:
        """Register an item, so that it can be chosen by its name in this process. The same item may come again.

        For the command line and for ranks, declare it as an entry point of an installed package instead.

        Raises:
            InvalidInput: another item has this name, or it cannot be registered.
        """
        if self._items.get(item.name, item) != item:
            what, where = f"another {self._word} has this name", f"{self._word} '{item.name}'"
            raise InvalidInput(what, where=where, remedy="Choose another name.")
        if self._check is not None:
            self._check(item)
        self._items[item.name] = item

    def all(self) -> Mapping[str, N]:
        """Return all items, including those of installed packages.

        Raises:
            InvalidInput: an item of an installed package cannot be imported or registered.
        """
        if not self._complete:
            for _, item in load_plugins(self.group, self._kind):
                self.register(item)
            self._complete = True
        return MappingProxyType(self._items)

    def find(self, name: str, where: str = "") -> N:
        """Return the item of this name.

        Args:
            name: as users write it.
            where: the name was read, for the error.

        Raises:
            InvalidInput: the name is unknown; the nearest one is given.
        """
        if name not in self._items and name not in self.all():
            raise InvalidInput(f"unknown {self._word} '{name}'", where=where, remedy=nearest(name, [*self._items]))
        return self._items[name]

    @contextmanager
    def restored(self) -> Generator[Mapping[str, N]]:
        """Yield a copy of what is registered, and forget at the end of the block what came in it."""
        known = dict(self._items)
        self._complete = False
        try:
            yield known
        finally:
            self._items, self._complete = known, False


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
