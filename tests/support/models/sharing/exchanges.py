"""Notes what ranks exchange in groups while they train."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from torch import Tensor

from graphpipe.cluster.ring import Ring
from graphpipe.run.comm.world import World


class Exchange(NamedTuple):
    """A collective of some ranks."""

    kind: Literal["reduce", "gather"]
    """An all-reduce; or an all-gather or reduce-scatter, which takes half of its steps."""
    ranks: tuple[int, ...]
    bytes: int
    """Of the whole value, which every rank has before or afterwards."""

    def seconds(self, ring: Ring) -> float:
        """Return the seconds that it takes on a ring."""
        return ring.reduce_seconds(self.bytes) if self.kind == "reduce" else ring.gather_seconds(self.bytes)


@contextmanager
def exchanges() -> Generator[list[Exchange]]:
    """Return a list to which everything is added that this rank exchanges with some others inside a block."""
    noted: list[Exchange] = []
    plain_sum, plain_gather, plain_sum_own = World.sum, World.gather, World.sum_own

    def add(kind: Literal["reduce", "gather"], ranks: Sequence[int] | None, count: int) -> None:
        if ranks is not None and len(set(ranks)) > 1:
            noted.append(Exchange(kind, tuple(sorted(set(ranks))), count))

    def noted_sum(self: World, tensor: Tensor, ranks: Sequence[int] | None = None) -> None:
        add("reduce", ranks, tensor.nbytes)
        plain_sum(self, tensor, ranks)

    def noted_gather(self: World, tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
        add("gather", ranks, tensor.nbytes * len(ranks))
        return plain_gather(self, tensor, ranks)

    def noted_sum_own(self: World, tensor: Tensor, ranks: Sequence[int]) -> Tensor:
        add("gather", ranks, tensor.nbytes)
        return plain_sum_own(self, tensor, ranks)

    changed: dict[str, Any] = {"sum": noted_sum, "gather": noted_gather, "sum_own": noted_sum_own}
    with patch.multiple(World, **changed):
        yield noted
