"""All sets of operators that can follow a prefix of a pipeline: Piper's downsets, PipeDream's antichain states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.planners.problem.limits import MOST_DOWNSETS


def closed_sets(needs: Sequence[int], limit: int = MOST_DOWNSETS) -> list[int]:
    """Return every set that contains, for each of its members, all members which that member needs.

    Args:
        needs: for each member the bits of the members that it needs.
        limit: most sets; their number grows exponentially with the width of the graph.

    Returns:
        Sets as bits, by size, from the empty set to the whole.

    Raises:
        Infeasible: there are more sets than `limit`.
    """
    users = [[user for user, need in enumerate(needs) if need >> member & 1] for member in range(len(needs))]
    level = {0: sum(1 << member for member, need in enumerate(needs) if not need)}  # set -> members that may join it
    sets: list[int] = []
    while level:
        sets += level
        if len(sets) > limit:
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
    return sets


def _bits(mask: int) -> list[int]:
    bits: list[int] = []
    while mask:
        bits.append(mask & -mask)
        mask &= mask - 1
    return bits


@dataclass(frozen=True, slots=True)
class Downsets:
    """Sets of operators that contain all successors of their members, so that they can follow a prefix of a pipeline.

    The difference of two nested downsets is convex. So a chain of downsets from the whole to the empty set is a
    sequence of convex stages, and every such sequence is a chain of downsets.
    """

    members: NDArray[np.bool_]
    """[downsets, operators]: the members of each downset. They go by size, from the empty set to the whole."""
    _words: NDArray[np.uint64]

    @staticmethod
    def over(members: NDArray[np.bool_]) -> "Downsets":
        """Return the downsets of a membership table."""
        octets = np.packbits(members, axis=1)
        padded = np.pad(octets, ((0, 0), (0, -octets.shape[1] % 8)))
        return Downsets(members, np.ascontiguousarray(padded).view(np.uint64))

    @staticmethod
    def of(graph: Graph, limit: int = MOST_DOWNSETS) -> "Downsets":
        """Return the downsets of a graph, with operators in the order of `graph.ops`.

        Raises:
            Infeasible: there are more than `limit`.
        """
        needs = [sum(1 << graph.index[after] for after in graph.successors[op.name]) for op in graph.ops]
        count = len(needs)
        octets = b"".join(closed.to_bytes(-(-count // 8), "little") for closed in closed_sets(needs, limit))
        table = np.frombuffer(octets, np.uint8).reshape(-1, -(-count // 8))
        return Downsets.over(np.unpackbits(table, axis=1, count=count, bitorder="little").astype(np.bool_))

    @staticmethod
    def chain(graph: Graph) -> "Downsets":
        """Return the downsets of the linearised graph, which are the suffixes of its order, shortest first."""
        count = len(graph.ops)
        place = np.empty(count, dtype=np.intp)
        place[[graph.index[name] for name in graph.order]] = np.arange(count)
        return Downsets.over(place >= count - np.arange(count + 1)[:, None])

    def __len__(self) -> int:
        return len(self.members)

    def below(self, at: int) -> NDArray[np.intp]:
        """Return the positions of the downset's proper subsets, which can remain after its first stage."""
        return np.flatnonzero(~(self._words[:at] & ~self._words[at]).any(axis=1))
