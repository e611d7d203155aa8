"""The loads that operators and cuts add to a stage, as shares of the stage's limits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shares = NDArray[np.float32]
Float = np.float32
"""Seven digits suffice for shares of a limit, and halve the memory traffic."""
SLACK = Float(1 + 1e-5)
"""The largest load that fits; above 1 because sums of shares are rounded."""
_ROUNDED = 1 + 1e-3
"""Shares of memory up to which operators may fit: more than `SLACK`, and what rounding adds to it."""


@dataclass(frozen=True, slots=True)
class RelativeLoads:
    """Loads of operators and of cuts, for every setting (micro-batch size) and target."""

    index: dict[str, int]
    """Position of each operator in the arrays below."""
    units: tuple[int, ...]
    """Units of devices of each degree."""
    seconds: Array
    """[operators, settings, degrees]: stage time that one operator adds per micro-batch; infinite if not allowed."""
    targets: Array
    """[settings, targets]: seconds a stage may take per micro-batch."""
    memory: Array | None
    """[operators, settings, degrees]: share of a device's memory that one operator adds; None ignores memory."""
    classes: tuple[int, ...]
    """Numbers that are equal for operators of equal loads."""
    cut_seconds_per_byte: Array
    """[settings, degrees]: seconds per micro-batch to send one byte per sample out of a stage."""
    overlap: bool
    """Whether a cut only needs to fit by itself. Otherwise its time adds to the stages on both sides."""

    @property
    def rows(self) -> int:
        """Number of rows of loads: 1 for time alone, 2 for time and memory."""
        return 1 if self.memory is None else 2

    def only(self, chosen: NDArray[np.intp], targets: Array) -> "RelativeLoads":
        """Return the loads of the chosen settings for other targets."""
        return replace(
            self,
            seconds=self.seconds[:, chosen],
            targets=targets,
            memory=None if self.memory is None else self.memory[:, chosen],
            cut_seconds_per_byte=self.cut_seconds_per_byte[chosen],
        )

    def table(self, ops: Iterable[str]) -> tuple[Shares, dict[str, int]]:
        """Return the loads of operators, of shape [classes, rows, degrees, 1, settings, targets].

        Equal operators share a row of the first axis. Also returns the row of each operator.
        """
        classes = {op: self.classes[self.index[op]] for op in ops}
        firsts = {kind: self.index[op] for op, kind in reversed(classes.items())}
        row = {kind: position for position, kind in enumerate(firsts)}
        at = list(firsts.values())
        time = self.seconds[at].swapaxes(1, 2)[..., None] / self.targets
        loads = np.empty((len(at), self.rows, time.shape[1], 1, *self.targets.shape), Float)
        loads[:, 0, :, 0] = time
        if self.memory is not None:
            loads[:, 1, :, 0] = self.memory[at].swapaxes(1, 2)[..., None]
        return loads, {op: row[kind] for op, kind in classes.items()}

    def may_fit(self, ops: Sequence[str], devices: int) -> NDArray[np.bool_]:
        """Return, of shape [settings], whether the operators may fit in the memory of all devices.

        The operators of a stage take at most its memory, and all stages together at most all devices. So if the bytes
        of each operator on its best degree, times that degree, are more than all devices have, nothing fits.

        Args:
            ops: operators to place.
            devices: in units.
        """
        assert self.memory is not None, "memory is not ignored"
        at = [self.index[op] for op in ops]
        allowed = np.where(np.isfinite(self.seconds[at]), self.memory[at], np.inf)
        least = (allowed * np.array(self.units)).min(axis=2).sum(axis=0)
        largest = allowed.min(axis=2).max(axis=0)
        return (least <= devices * _ROUNDED) & (largest <= _ROUNDED)

    @property
    def narrow_bytes(self) -> float:
        """Bytes per sample up to which a cut is within the time limit in every setting."""
        most = float((self.cut_seconds_per_byte[..., None] / self.targets[:, None]).max(initial=0.0))
        return 1.0 / most if most else np.inf

    def of_cut(self, count: float) -> Shares:
        """Return the time fraction of sending `count` bytes per sample, of shape [degrees, 1, settings, targets]."""
        share = self.cut_seconds_per_byte.T[..., None] * count / self.targets
        return share[:, None].astype(Float)
