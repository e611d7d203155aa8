"""The mini-batches of a segment, read when a task first needs them, and forgotten when their weights are updated."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar, final

from graphpipe.errors import InvalidInput
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.mini_batch import MiniBatch

Item = TypeVar("Item")
Check = Callable[[Item, int, MiniBatch | None, bool], MiniBatch]
"""Takes what the user gave, its number, the first mini-batch (None for the first), and whether the segment runs."""


def taken_from(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield so many items, and read no further.

    Raises:
        InvalidInput: there are fewer, or the number is not positive.
    """
    if count < 1:
        raise InvalidInput(f"is {count}, must be at least 1", where="count")
    rest = iter(items)
    for number in range(count):
        try:
            yield next(rest)
        except StopIteration:
            what = f"the segment ended after {number} mini-batches, but count is {count}"
            raise InvalidInput(what, where="batches", remedy="Give more mini-batches, or a smaller count.") from None


@final
class MiniBatchStream:
    """The mini-batches of a segment, in order. At most those in flight are held.

    Args:
        count: of the segment.
        read: reads and checks the next mini-batch; takes its number and the first one (None for the first).
    """

    def __init__(self, count: int, read: Callable[[int, MiniBatch | None], MiniBatch]) -> None:
        self._count, self._read, self._number = count, read, 0
        self._held: dict[int, MiniBatch] = {}
        self._first = read(0, None)
        self._keep(self._first)

    @staticmethod
    def lazy(given: Iterable[Item], count: int, check: "Check[Item]") -> "MiniBatchStream":
        """Return the stream of so many of the given mini-batches, which reads and checks them when they are needed."""
        rest = taken_from(given, count)
        return MiniBatchStream(count, lambda number, first: check(next(rest), number, first, number > 0))

    @staticmethod
    def checked(given: Sequence[Item], check: "Check[Item]") -> "MiniBatchStream":
        """Return the stream of the given mini-batches, all of which are checked now."""
        batches: list[MiniBatch] = []
        for number, item in enumerate(given):
            batches.append(check(item, number, batches[0] if batches else None, False))
        return MiniBatchStream(len(batches), lambda number, _: batches[number])

    def __len__(self) -> int:
        """Return the number of mini-batches of the segment."""
        return self._count

    def __getitem__(self, number: int) -> MiniBatch:
        """Return a mini-batch that was not forgotten; read up to it."""
        while self._number <= number:
            self._keep(self._read(self._number, self._first))
        return self._held[number]

    def fit(self, specs: EdgeSpecs) -> None:
        """Set the values that cross the edges, for all mini-batches."""
        self._first = replace(self._first, specs=specs)
        self._held = {number: replace(batch, specs=specs) for number, batch in self._held.items()}

    def forget_before(self, number: int) -> None:
        """Forget the mini-batches before this one."""
        for old in [held for held in self._held if held < number]:
            del self._held[old]

    def finish(self) -> None:
        """Read what no task of this rank has read, so that all ranks have read alike, and forget everything."""
        for number in range(self._number, self._count):
            self._read(number, self._first)
        self._number = self._count
        self._held.clear()

    def _keep(self, batch: MiniBatch) -> None:
        self._held[self._number] = replace(batch, specs=self._first.specs)
        self._number += 1
