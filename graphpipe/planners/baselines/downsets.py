"""Every set of operators a pipeline can still have to do: what Piper calls downsets, PipeDream antichain states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.errors import Infeasible
from graphpipe.graph import Graph

LIMIT = 40_000
"""Of the published Piper solver."""


def closed_sets(needs: Sequence[int], limit: int = LIMIT) -> list[int]:
    """Return every set that holds, with each of its members, all that the member needs.

    Args:
        needs: for each member the bits of those it needs.
        limit: how many sets are too many: their number grows exponentially with the width of the graph.

    Returns:
        Sets as bits, by size: first the empty set, last the whole.

    Raises:
        Infeasible: there are more sets than `limit`.
    """
    users = [[user for user, need in enumerate(needs) if need >> member & 1] for member in range(len(needs))]
    level = {0: sum(1 << member for member, need in enumerate(needs) if not need)}  # set -> what may join it
    found: list[int] = []
    while level:
        found += level
        if len(found) > limit:
            raise Infeasible(
                f"too many downsets (N > {limit:,})",
                remedy="Capture the model at a coarser granularity, or choose a planner that scales with the width.",
            )
        following: dict[int, int] = {}
        for inside, ready in level.items():
            for bit in _bits(ready):
                larger = inside | bit
                if larger not in following:
                    opened = [user for user in users[bit.bit_length() - 1] if not needs[user] & ~larger]
                    following[larger] = ready ^ bit | sum(1 << user for user in opened)
        level = following
    return found


def _bits(mask: int) -> list[int]:
    found: list[int] = []
    while mask:
        found.append(mask & -mask)
        mask &= mask - 1
    return found


@dataclass(frozen=True, slots=True)
class Downsets:
    """Sets of operators that hold, with each operator, all its successors: what may follow a prefix of the pipeline.

    The difference of two nested downsets is convex, so a chain of downsets from the whole to the empty set is a
    sequence of stages, and every sequence of convex stages is such a chain.
    """

    members: NDArray[np.bool_]
    """[downsets, operators], by size: first the empty set, last the whole."""
    _words: NDArray[np.uint64]

    @staticmethod
    def over(members: NDArray[np.bool_]) -> "Downsets":
        """Return the downsets of a membership table."""
        octets = np.packbits(members, axis=1)
        padded = np.pad(octets, ((0, 0), (0, -octets.shape[1] % 8)))
        return Downsets(members, np.ascontiguousarray(padded).view(np.uint64))

    @staticmethod
    def of(graph: Graph, limit: int = LIMIT) -> "Downsets":
        """Return the downsets of a graph; operators in order of `graph.ops`.

        Raises:
            Infeasible: there are more than `limit`.
        """
        needs = [sum(1 << graph.index[after] for after in graph.successors[op.name]) for op in graph.ops]
        count = len(needs)
        octets = b"".join(found.to_bytes(-(-count // 8), "little") for found in closed_sets(needs, limit))
        table = np.frombuffer(octets, np.uint8).reshape(-1, -(-count // 8))
        return Downsets.over(np.unpackbits(table, axis=1, count=count, bitorder="little").astype(np.bool_))

    @staticmethod
    def chain(graph: Graph) -> "Downsets":
        """Return the downsets of the linearised graph: the ends of its one order, shortest first."""
        count = len(graph.ops)
        place = np.empty(count, dtype=np.intp)
        place[[graph.index[name] for name in graph.order]] = np.arange(count)
        return Downsets.over(place >= count - np.arange(count + 1)[:, None])

    def __len__(self) -> int:
        return len(self.members)

    def below(self, at: int) -> NDArray[np.intp]:
        """Return the positions of the proper subsets of a downset: what may be left when its first stage is cut off."""
        return np.flatnonzero(~(self._words[:at] & ~self._words[at]).any(axis=1))
