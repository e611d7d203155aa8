"""The costs of every interval of a linear order of the operators, as a stage of inference on one device."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.graph.operator import Read

Array = NDArray[np.float64]

BUFFERS = 3
"""Micro-batches that a stage of a chain keeps in flight (`plans.in_flight.forward_in_flight`)."""


@dataclass(frozen=True, slots=True)
class IntervalCosts:
    """Bytes of the interval [i, j) of an order, in matrices of L + 1 rows i and columns j for L operators.

    Entries that are not intervals (j <= i) are infinite.
    """

    model: CostModel
    order: tuple[str, ...]
    weights: Array
    """Bytes of parameters, each once."""
    crossing: Array
    """Bytes per sample that an interval receives and sends, or gives to the caller."""
    working: Array
    """Most bytes per sample that its operators' outputs take while a forward runs."""
    cuts: Array
    """Bytes per sample that later operators read of earlier ones, by the position of the cut (0 to L)."""

    @staticmethod
    def of(model: CostModel, order: tuple[str, ...]) -> "IntervalCosts":
        """Return the bytes of all intervals. Takes O(L (L + E)) steps for L operators and E edges."""
        size = len(order) + 1
        weights, crossing, working = (np.full((size, size), inf) for _ in range(3))
        at = {name: position for position, name in enumerate(order)}
        reads: dict[str, list[Read]] = {name: [] for name in order}
        for read in model.graph.reads:
            reads[read.target].append(read)
        for first in range(len(order)):
            _fill(model, order, at, reads, first, (weights[first], crossing[first], working[first]))
        cuts = np.zeros(size)
        sizes, last = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
        for _, target, value, count in model.graph.reads:
            sizes[value] = max(sizes.get(value, 0.0), count)
            last[value] = max(last.get(value, 0), at[target])
        for value, count in sizes.items():
            cuts[at[value[0]] + 1 : last[value] + 1] += count
        return IntervalCosts(model, order, weights, crossing, working, cuts)

    def seconds(self, device_type: str, samples: int) -> Array:
        """Return the seconds in which a device of this type computes each interval for some samples."""
        forward, _, _ = self.model.seconds(device_type, samples)
        sums = np.concatenate(([0.0], np.cumsum(forward[self.model.positions(self.order)])))
        interval_seconds = sums[None, :] - sums[:, None] + self.model.table.task_overhead_seconds
        return np.where(np.isinf(self.weights), inf, interval_seconds)

    def needed_bytes(self, samples: int, in_flight: int) -> Array:
        """Return the bytes that each interval needs for micro-batches of `samples`, with `in_flight` samples."""
        temporary = self.model.op_bytes.temporary(samples)[self.model.positions(self.order)]
        most = np.array(
            [
                np.maximum.accumulate(np.where(np.arange(len(temporary)) >= first, temporary, 0.0))
                for first in range(len(temporary))
            ]
        )
        needed = self.weights + self.crossing * in_flight + self.working * samples
        needed[:-1, 1:] += most
        return needed


def _fill(
    model: CostModel,
    order: tuple[str, ...],
    at: dict[str, int],
    reads: dict[str, list[Read]],
    first: int,
    rows: tuple[Array, Array, Array],
) -> None:
    """Fill the row of the intervals that begin at `first`, adding one operator after the other.

    A value that several operators of the interval read is received once. An operator may send several values.
    """
    graph, shared = model.graph, {tied.name: tied.bytes for tied in model.graph.shared if tied.trainable}
    weights = received = kept = most = 0.0
    taken, seen = dict[tuple[str, str], float](), set[str]()
    missing = dict[str, int]()
    """Readers outside the interval, by operator inside."""
    last = dict[str, int]()
    live = np.zeros(len(order) - first)
    for position in range(first, len(order)):
        name = order[position]
        op = graph[name]
        weights += op.parameter_bytes - sum(shared[tied] for tied in op.parameters if tied in seen and tied in shared)
        seen.update(op.parameters)
        own = op.output_bytes_per_sample
        last[name], missing[name] = position, len(graph.successors[name])
        live[position - first] += own
        most = max(most, float(live[position - first]))
        kept += own
        for source, _, value, bytes_read in reads[name]:
            if at[source] < first:
                count = max(taken.get(value, 0.0), bytes_read)
                received += count - taken.get(value, 0.0)
                taken[value] = count
        for before in (other for other in graph.predecessors[name] if at[other] >= first):
            missing[before] -= 1
            kept -= 0.0 if missing[before] else graph[before].output_bytes_per_sample
            held = live[last[before] + 1 - first : position + 1 - first]
            held += graph[before].output_bytes_per_sample
            most, last[before] = max(most, float(held.max(initial=0.0))), position
        for row, value in zip(rows, (weights, received + kept, most), strict=True):
            row[position + 1] = value
