"""Finds stages that do the same at the same times, such as those of equal branches, so that one stands for all."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphpipe.cluster import Link
from graphpipe.schedule.task_numbers import first_equal


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one stage edge in one direction."""

    bytes_per_sample: float
    shares: int
    """Replicas on the side that has more of them: a message carries the share of one replica."""
    links: frozenset[Link | None]
    sent: float = 1.0
    """Messages that a replica sends at once to those of the other stage, of those that share ports; at least 1."""
    got: float = 1.0
    """Messages that a replica gets at once from those of the other stage, of those that share ports; at least 1."""

    @property
    def share_ports(self) -> bool:
        """Whether they share the ports of devices with other messages."""
        return any(link is not None and link.shared for link in self.links)

    def seconds(self, samples: int, at_once: float) -> float:
        """Return the seconds of a transfer of so many samples between the slowest pair of replicas.

        Args:
            samples: of all replicas.
            at_once: messages that pass the fuller port of a pair together, where ports are shared.
        """
        count = self.bytes_per_sample * samples / self.shares
        together = count * at_once
        return max(link.seconds(together if link.shared else count) if link else 0.0 for link in self.links)


class Hop(NamedTuple):
    """Messages from one stage to another. The smaller position comes first in the graph."""

    source: int
    target: int
    messages: Messages


def find_equal_stages(own: Iterable[Hashable], hops: Sequence[Hop]) -> list[int]:
    """Return for each stage the first one that does the same at the same times.

    Colour refinement:

    1. Stages with equal work get equal colours.
    2. Stages that wait for different colours get different colours, until nothing changes.

    Stages of equal colours then follow equal recurrences. Each round refines along the messages, down the whole graph
    and up again, so that few rounds suffice at any depth.

    Args:
        own: the work of each stage, in topological order.
        hops: all messages between stages, gradients included.
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


def _arriving(hops: Iterable[Hop], stages: Sequence[int], *, forward: bool) -> list[list[Hop]]:
    arriving: list[list[Hop]] = [[] for _ in stages]
    for hop in hops:
        if (hop.source < hop.target) == forward:
            arriving[hop.target].append(hop)
    return arriving


def _refine(colours: list[int], arriving: Sequence[Sequence[Hop]], order: Iterable[int]) -> None:
    """Give different colours to stages that wait for different colours. Sources come first in `order`."""
    known: dict[Hashable, int] = {}
    for stage in order:
        seen = frozenset((colours[hop.source], hop.messages) for hop in arriving[stage])
        colours[stage] = known.setdefault((colours[stage], seen), len(known))
