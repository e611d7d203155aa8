"""Collage's dynamic programme: cover the graph with patterns, each on its cheapest backend, from the output backwards.

References:
    Jeon et al.: Collage: seamless integration of deep learning backends with automatic placement. PACT 2022, section
    4.2 (operator-level placement).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphpipe.graph import Graph

LAUNCH_SECONDS = 1e-5
"""Seconds added for every piece, as published: the time between two launches, which measurements of pieces lack."""
Pattern = tuple[str, ...]
Cost = Callable[[Pattern], tuple[float, str] | None]
"""Returns the seconds of a pattern on its cheapest backend, and the backend; None if no backend runs it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A pattern on a backend."""

    backend: str
    ops: Pattern


def cheapest_cover(
    graph: Graph, patterns: Mapping[str, Sequence[Pattern]], cost: Cost, launch_seconds: float = LAUNCH_SECONDS
) -> tuple[float, list[Placed]] | None:
    """Return the least seconds of a cover of all roots by patterns, and the cover in the order of the graph.

    A state is the set of operators that are not covered. Its frontier is the last of them in the order of the graph: it
    can only be the root of a pattern, because everything that reads it is covered.

        least(left) = min over patterns p in left with root last(left):  cost(p) + launch + least(left - p)

    Tensors enter and leave every piece as PyTorch's, so the cost of a pattern contains its conversions.

    Args:
        graph: of the model.
        patterns: by root, for every operator to cover.
        cost: of a pattern.
        launch_seconds: of each piece.

    Returns:
        None if an operator is in no pattern that a backend runs.
    """
    order = [name for name in graph.order if name in patterns]
    bit = {name: 1 << position for position, name in enumerate(order)}
    least: dict[int, tuple[float, Placed | None, int]] = {(1 << len(order)) - 1: (0.0, None, 0)}
    # By the last operator that is left: the states that are reached so far. Every step makes it smaller.
    waiting: list[list[int]] = [[] for _ in order]
    if not order:
        return 0.0, []
    waiting[-1].append((1 << len(order)) - 1)
    for position in range(len(order) - 1, -1, -1):
        for left in waiting[position]:
            seconds = least[left][0]
            for pattern in patterns[order[position]]:
                mask = sum(bit[name] for name in pattern)
                if left & mask != mask or (price := cost(pattern)) is None:
                    continue
                total, after = seconds + price[0] + launch_seconds, left & ~mask
                if after not in least:
                    if after:
                        waiting[after.bit_length() - 1].append(after)
                elif least[after][0] <= total:
                    continue
                least[after] = total, Placed(price[1], pattern), left
    if 0 not in least:
        return None
    cover: list[Placed] = []
    state, full = 0, (1 << len(order)) - 1
    while state != full:
        _, placed, state = least[state]
        assert placed is not None, "only the full state begins"
        cover.append(placed)
    return least[0][0], cover
