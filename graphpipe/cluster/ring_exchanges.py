"""What the devices that share the replicas of a stage exchange, besides the sums inside its operators."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from graphpipe.cluster.ring import Ring
from graphpipe.graph import Read
from graphpipe.graph.op_shards import HALF

Value = tuple[str, str]
"""The operator that computes a value, and the value's name (`Read.value`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingExchanges:
    """The exchanges of a ring of devices that divide the sequence between operators.

    Values are whole between stages. The stage that computes one as shards gathers it in its forward, and so does one
    with an operator that reads it whole. A stage that reads shards of a whole value gathers its gradient in the
    backward.
    """

    ring: Ring
    returned: frozenset[Value] = frozenset()
    """The values that are computed as shards."""
    taken: frozenset[tuple[str, Value]] = frozenset()
    """Operators, with the values that they read as shards."""
    summed: tuple[tuple[str, float], ...] = ()
    """Operators, with the bytes of their parameters of which each device gets the gradient of its positions. A stage
    sums these gradients once in a mini-batch."""

    def gathered(self, reads: Iterable[Read], ops: Collection[str]) -> dict[Value, float]:
        """Return the values that a stage computes as shards and gathers, with their bytes per sample.

        Args:
            reads: of all operators.
            ops: of the stage.
        """
        return {
            read.value: read.bytes_per_sample
            for read in reads
            if read.source in ops and read.value in self.returned
            if read.target not in ops or (read.target, read.value) not in self.taken
        }

    def gathered_back(self, reads: Iterable[Read], ops: Collection[str]) -> dict[Value, float]:
        """Return the whole values of which a stage reads shards, so that it gathers their gradients."""
        return {
            read.value: read.bytes_per_sample
            for read in reads
            if read.target in ops and (read.target, read.value) in self.taken
            if not (read.source in ops and read.value in self.returned)
        }

    def gather_seconds(self, bytes_per_sample: Collection[float], samples: float) -> float:
        """Return the seconds in which values of some samples are gathered, one after the other, with the work."""
        fixed, slope = self.ring.reduce_line(HALF * len(bytes_per_sample), HALF * sum(bytes_per_sample))
        return fixed + slope * samples

    def sum_seconds(self, ops: Iterable[str]) -> float:
        """Return the seconds, once in a mini-batch, in which the gradients of some operators are summed."""
        known = dict(self.summed)
        count = sum(known.get(op, 0.0) for op in ops)
        return self.ring.reduce_seconds(count) + self.ring.reduce_work_seconds(count)
