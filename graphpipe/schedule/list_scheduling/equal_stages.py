"""Stages of a plan that do the same at the same times, such as those of equal branches: one can stand for all."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphpipe.cluster import Link
from graphpipe.cluster.cluster import slowest_seconds


@dataclass(frozen=True, slots=True)
class Messages:
    """What one stage edge carries one way."""

    bytes_per_sample: float
    shares: int
    """A message is the share of one replica, on the side that has more."""
    links: frozenset[Link | None]

    def seconds(self, samples: int) -> float:
        """Return the seconds that so many samples take between the slowest pair of replicas."""
        return slowest_seconds(self.links, self.bytes_per_sample * samples / self.shares)


class Hop(NamedTuple):
    """Messages from one stage to another: of their positions the smaller comes first in the graph."""

    source: int
    target: int
    messages: Messages


def alike(own: Iterable[Hashable], hops: Sequence[Hop]) -> list[int]:
    """Return for each stage the first one that does the same at the same times.

    Colour refinement: stages begin alike if they have equal work; then those that wait for different colours are told
    apart, until nothing changes. What is left alike has equal recurrences. Colours go along with the messages, all the
    way down the graph and all the way up, so that few rounds do for any depth.

    Args:
        own: what each stage has to do, stages in topological order.
        hops: all messages between stages, gradients among them.
    """
    colours = first_equal(own)
    stages = range(len(colours))
    down, up = _arriving(hops, stages, forward=True), _arriving(hops, stages, forward=False)
    counts = [0, len(set(colours))]
    while counts[-1] > counts[-2]:
        _refine(colours, down, stages)
        _refine(colours, up, reversed(stages))
        counts.append(len(set(colours)))
    return first_equal(colours)


def first_equal(items: Iterable[Hashable]) -> list[int]:
    """Return for each item the position of the first one equal to it."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(item, position) for position, item in enumerate(items)]


def _arriving(hops: Iterable[Hop], stages: Sequence[int], *, forward: bool) -> list[list[Hop]]:
    arriving: list[list[Hop]] = [[] for _ in stages]
    for hop in hops:
        if (hop.source < hop.target) == forward:
            arriving[hop.target].append(hop)
    return arriving


def _refine(colours: list[int], arriving: Sequence[Sequence[Hop]], order: Iterable[int]) -> None:
    """Tell stages apart that wait for different colours; the sources of a stage come before it in the order."""
    known: dict[Hashable, int] = {}
    for stage in order:
        seen = frozenset((colours[hop.source], hop.messages) for hop in arriving[stage])
        colours[stage] = known.setdefault((colours[stage], seen), len(known))
