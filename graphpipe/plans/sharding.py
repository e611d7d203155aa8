"""Which samples of a mini-batch a replica of a stage computes in each micro-batch.

mini-batch of 8, micro_batch 4, degree 2        samples  0 1 | 2 3 | 4 5 | 6 7
                                                replica   0  |  1  |  0  |  1
                                                micro-batch  0     |     1

If the micro-batch does not divide the mini-batch, the last micro-batch is short. So an order of tasks that is possible
for whole micro-batches is possible here, too:

mini-batch of 7, micro_batch 4, degree 2        samples  0 1 | 2 3 | 4 | 5 6
                                                replica   0  |  1  | 0 |  1
                                                micro-batch  0     |   1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Pieces = tuple[tuple[int, int, int], ...]
"""Samples that two replicas have in common: the micro-batch of the first, that of the second, and how many samples."""


@dataclass(frozen=True, slots=True)
class CommonSamples:
    """Which replicas of two stages have samples in common."""

    pairs: tuple[tuple[int, int, int], ...]
    """Pairs of a replica of either stage, with a position in `pieces`. Pairs with equal pieces have equal positions."""
    pieces: tuple[Pieces, ...]


@dataclass(frozen=True, slots=True, order=True)
class SampleRange:
    """Samples start, ..., stop - 1 of a mini-batch."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __and__(self, other: "SampleRange") -> "SampleRange":
        """Return the samples in both ranges (empty ranges have length 0)."""
        return SampleRange(max(self.start, other.start), min(self.stop, other.stop))

    def rows_of(self, whole: "SampleRange") -> slice:
        """Return the rows of these samples in a tensor of the samples of a larger range."""
        return slice(self.start - whole.start, self.stop - whole.start)


def sender(replica: Sequence[int], device: int, rank: int) -> int:
    """Return the device from which a device takes the values of a replica of another stage.

    Every device that shares a replica has all values. One that computes both replicas takes its own.

        replica on 4 5, read on 0 1 2 3      0 <- 4    1 <- 5    2 <- 4    3 <- 5

    Args:
        replica: the devices that share the replica that has the values, by rank.
        device: that takes them.
        rank: of this device among those that share its own replica.
    """
    return device if device in replica else replica[rank % len(replica)]


def count_micro_batches(batch_size: int, micro_batch: int) -> int:
    """Return the number of micro-batches. The last one is short if `micro_batch` does not divide `batch_size`."""
    return -(-batch_size // micro_batch)


def rounded_up(batch_size: int, micro_batch: int) -> int:
    """Return the samples of a mini-batch, rounded up to whole micro-batches: the most that a stage keeps in flight."""
    return count_micro_batches(batch_size, micro_batch) * micro_batch


@lru_cache(maxsize=65536)  # every training step uses the same ranges
def sample_range(batch_size: int, micro_batch: int, degree: int, index: int, replica: int) -> SampleRange:
    """Return the samples of micro-batch `index` that `replica` of a stage of this degree computes.

    A micro-batch is cut into `degree` contiguous ranges of equal length. A short last micro-batch is cut into ranges
    whose lengths differ by at most one. Some are empty if there are fewer samples than replicas.
    """
    first = index * micro_batch
    length = min(micro_batch, batch_size - first)
    return SampleRange(first + length * replica // degree, first + length * (replica + 1) // degree)


@lru_cache(maxsize=4096)  # A search makes many plans whose stages have the same sizes.
def common_samples(batch_size: int, size: int, degree: int, other_size: int, other_degree: int) -> CommonSamples:
    """Return which replicas of two stages have samples in common.

    Args:
        batch_size: samples of both.
        size: micro-batch of the first stage.
        degree: of the first stage.
        other_size: micro-batch of the second stage.
        other_degree: of the second stage.
    """
    left, right = _shares(batch_size, size, degree), _shares(batch_size, other_size, other_degree)
    positions_by_pair: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    # Both sides cut the same mini-batch into consecutive ranges, so one pass over both finds all overlaps.
    a = b = start = 0
    while start < batch_size:
        (stop, index, replica), (end, other_index, other) = left[a], right[b]
        positions_by_pair.setdefault((replica, other), []).append((index, other_index, min(stop, end) - start))
        start, a, b = min(stop, end), a + (stop <= end), b + (end <= stop)
    kinds: dict[Pieces, int] = {}
    pairs = tuple((*pair, kinds.setdefault(tuple(pieces), len(kinds))) for pair, pieces in positions_by_pair.items())
    return CommonSamples(pairs, tuple(kinds))


def _shares(batch_size: int, size: int, degree: int) -> list[tuple[int, int, int]]:
    """Return the end of each range of samples of a stage in order, with its micro-batch and its replica."""
    return [
        (samples.stop, index, replica)
        for index in range(count_micro_batches(batch_size, size))
        for replica in range(degree)
        if len(samples := sample_range(batch_size, size, degree, index, replica))
    ]
