"""Which samples of a mini-batch a replica of a stage computes in each micro-batch.

mini-batch of 8, micro_batch 4, degree 2        samples  0 1 | 2 3 | 4 5 | 6 7
                                                replica   0  |  1  |  0  |  1
                                                micro-batch  0     |     1
"""

from dataclasses import dataclass
from functools import lru_cache


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


def count_micro_batches(batch_size: int, micro_batch: int) -> int:
    """Return the number of micro-batches. The last one is short if `micro_batch` does not divide `batch_size`."""
    return -(-batch_size // micro_batch)


@lru_cache(maxsize=65536)  # every training step uses the same ranges
def sample_range(batch_size: int, micro_batch: int, degree: int, index: int, replica: int) -> SampleRange:
    """Return the samples of micro-batch `index` that `replica` of a stage of this degree computes.

    A micro-batch is cut into `degree` contiguous ranges of equal length. A short last micro-batch (only in evaluation)
    is cut into ranges whose lengths differ by at most one.
    """
    first = index * micro_batch
    length = min(micro_batch, batch_size - first)
    return SampleRange(first + length * replica // degree, first + length * (replica + 1) // degree)
