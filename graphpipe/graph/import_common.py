"""Shared by the importers of other tools' profiles: checks that name the file, and the check of units."""

from collections.abc import Collection, Iterable
from pathlib import Path

from graphpipe.errors import InvalidInput, check_not_negative
from graphpipe.graph.operator import Edge, Op
from graphpipe.graph.operator_graph import Graph
from graphpipe.user_frames import warn_user

SHORTEST_SECONDS, LONGEST_SECONDS = 1e-3, 20.0
"""Plausible seconds, least and most, of forward and backward of one batch."""


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
        InvalidInput: missing, not text, or empty.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("not a text file", where=str(path), remedy="Give a file in UTF-8.") from None
    if not any(line.strip() for line in lines):
        raise InvalidInput("the file is empty", where=str(path), remedy="Write it again.")
    return lines


def check_samples(samples: int) -> None:
    """Check the number of samples a profile was taken with.

    Raises:
        InvalidInput: less than one.
    """
    if samples < 1:
        raise InvalidInput(f"is {samples}, must be at least 1", where="samples")


def check_amount(amount: float, where: str) -> float:
    """Return `amount`.

    Raises:
        InvalidInput: negative, infinite or NaN.
    """
    check_not_negative(amount, where, "Measure it again, or give 0.")
    return amount


def build(path: str | Path, ops: Iterable[Op], edges: Iterable[Edge]) -> Graph:
    """Return the graph, named after its file. Warn if its times seem to be in another unit.

    Raises:
        InvalidInput: not a graph (a cycle, an unknown operator). The file is named.
    """
    try:
        graph = Graph(name=Path(path).name.split(".")[0], ops=tuple(ops), edges=tuple(edges))
    except InvalidInput as error:
        raise InvalidInput(error.what, where=str(path), remedy=error.remedy) from None
    warn_of_units(graph, path)
    return graph


def warn_of_units(graph: Graph, path: str | Path) -> None:
    """Warn if the times that came with a graph seem to be in another unit. The warning gives the sum of the times."""
    measured = [op.measured for op in graph.ops if op.measured]
    seconds = sum(times.forward_seconds + times.backward_seconds for times in measured)
    if measured and not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        warn_user(f"{path}: forward and backward of one batch sum to {seconds:.3g} s. Are the times in another unit?")


def without(dropped: Collection[str], ops: Iterable[Op], edges: Iterable[Edge]) -> tuple[list[Op], list[Edge]]:
    """Return the remaining operators and edges. Neighbours of a dropped operator stay joined, by its incoming edge."""
    kept: dict[tuple[str, str], Edge] = {(edge.source, edge.target): edge for edge in edges}
    for name in dropped:
        inward = [edge for edge in kept.values() if edge.target == name]
        outward = [edge for edge in kept.values() if edge.source == name]
        for edge in (*inward, *outward):
            del kept[edge.source, edge.target]
        for before in inward:
            for after in outward:
                pair = (before.source, after.target)
                kept.setdefault(pair, Edge(source=pair[0], target=pair[1], bytes_per_sample=before.bytes_per_sample))
    return [op for op in ops if op.name not in dropped], list(kept.values())
