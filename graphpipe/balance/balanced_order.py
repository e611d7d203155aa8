"""An order of samples whose blocks have about the same work.

Samples of one mini-batch cost unequal work: images per sample, lengths of texts. Devices compute blocks of neighbouring
samples: a micro-batch, or a replica's part of it. So the samples are divided into parts of equal numbers and about
equal loads, and each part again, down to the smallest block:

    8 samples with loads     8 1 1 1 4 4 2 1
    two micro-batches of 4   8 1 1 1 | 4 4 2 1           11 and 11
    each on two replicas     8 1 | 1 1 | 1 2 | 4 4       9 and 2, then 3 and 8: the replicas' sums are 12 and 10

It is a problem of number partitioning with equal numbers in all parts. The largest sample is taken first, by the part
that has the least (Graham: Bounds on Multiprocessing Timing Anomalies. SIAM J. Appl. Math. 17, 1969). Then two samples
change places as long as this brings the fullest and the emptiest part closer together. A replica computes its part of
every micro-batch. So the parts of a micro-batch begin with what their replicas have so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphpipe.balance.blocks import Blocks

Loads = NDArray[np.float64]
Samples = NDArray[np.int64]


def balanced_order(loads: Loads, blocks: Blocks) -> Samples:
    """Return the positions of samples in an order whose blocks, and replicas, have about equal loads.

    The order depends on the loads alone, so all ranks find the same one. Inside the smallest blocks samples stay in
    their order.

    Args:
        loads: [samples] or [samples, kinds], not negative: the work of each sample, of one kind or of several.
        blocks: that matter. Each size should divide the next larger one. One that does not divide it is left out.
    """
    table = loads.reshape(len(loads), -1)
    totals = table.sum(axis=0)
    shares = table[:, totals > 0] / totals[totals > 0]  # kinds count alike
    division = _Division(shares, blocks.replicas)
    division.divide(np.arange(len(loads)), _counts(len(loads), blocks.sizes))
    return np.array(division.order, dtype=np.int64)


def _counts(samples: int, sizes: Sequence[int]) -> list[int]:
    """Return into how many parts to divide, level by level, so that blocks of these sizes are parts of some level."""
    counts: list[int] = []
    left = samples
    for size in sorted(set(sizes), reverse=True):
        if left % size == 0:
            counts += _primes(left // size)
            left = size
    return counts


def _primes(number: int) -> list[int]:
    found: list[int] = []
    factor = 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


@dataclass(slots=True)
class _Division:
    """The order so far, and what it gives to each replica."""

    shares: Loads
    replicas: Sequence[tuple[int, int]]
    order: list[int] = field(default_factory=list[int])
    loads: list[Loads] = field(init=False)
    """[replicas, kinds] of each of `replicas`."""

    def __post_init__(self) -> None:
        self.loads = [np.zeros((size // part, self.shares.shape[1])) for size, part in self.replicas]

    def divide(self, samples: Samples, counts: Sequence[int]) -> None:
        """Append samples to the order, divided into so many parts, and these again."""
        if not counts:
            for sample in samples.tolist():
                for loads, (size, part) in zip(self.loads, self.replicas, strict=True):
                    loads[len(self.order) % size // part] += self.shares[sample]
                self.order.append(sample)
            return
        given = self._given(len(samples), counts[0])
        parts = _parts(self.shares, samples, given)
        _even_out(self.shares, parts, given)
        for part in parts:
            self.divide(np.sort(part), counts[1:])

    def _given(self, samples: int, count: int) -> Loads:
        """Return what the replicas of each part of the next samples have already: nothing beyond a micro-batch."""
        given, each = np.zeros((count, self.shares.shape[1])), samples // count
        for loads, (size, own) in zip(self.loads, self.replicas, strict=True):
            for part in range(count if samples <= size else 0):
                first = (len(self.order) + part * each) % size
                given[part] += loads[first // own : -(-(first + each) // own)].sum(axis=0)
        return given


def _parts(shares: Loads, samples: Samples, given: Loads) -> list[Samples]:
    """Return samples in parts of equal numbers: the largest first, each to the part that has the least."""
    count, sums = len(given), given.copy()
    room = len(samples) // count
    parts: list[list[int]] = [[] for _ in range(count)]
    for sample in samples[np.argsort(-shares[samples].sum(axis=1), kind="stable")].tolist():
        # Of |s + x|^2 over all parts, s the sum of a part and x the sample, the part with the least s·x adds the least.
        adds = sums @ shares[sample]
        best = min((part for part in range(count) if len(parts[part]) < room), key=lambda part: (adds[part], part))
        parts[best].append(sample)
        sums[best] += shares[sample]
    return [np.array(part, dtype=np.int64) for part in parts]


def _even_out(shares: Loads, parts: list[Samples], given: Loads) -> None:
    """Exchange samples between the fullest and the emptiest part, as long as they come closer together."""
    for _ in range(len(parts) * len(parts[0])):
        sums = given + [shares[part].sum(axis=0) for part in parts]
        totals = sums.sum(axis=1)
        most, least = int(np.argmax(totals)), int(np.argmin(totals))
        apart = sums[most] - sums[least]
        # After an exchange of x and y, the sums are apart by what they were less 2 (x - y).
        moved = shares[parts[most]][:, None, :] - shares[parts[least]][None, :, :]
        left = ((apart - 2 * moved) ** 2).sum(axis=2)
        best = int(np.argmin(left))
        if left.flat[best] >= (apart**2).sum() * (1 - 1e-9):
            return
        x, y = divmod(best, left.shape[1])
        parts[most][x], parts[least][y] = parts[least][y], parts[most][x]
