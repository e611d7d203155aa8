"""What a walk of the dynamic program keeps, and the stages recovered from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.graph.series_parallel import Leaf, Parallel, Series
from graphpipe.planners.search.relative_loads import Float, Shares

Mask = NDArray[np.bool_]
_NO_LOAD = np.full((), -1, Float)


@dataclass(slots=True)
class WalkStep:
    """The state before one part of a series, or at its end, kept for backtracking."""

    before: Shares
    fits: Mask
    """[degrees, devices + 1, settings, targets]: whether the open stage can close here."""
    closed: Mask
    """[devices + 1, settings, targets]: whether everything before fits on m devices."""
    riding: Shares | None = None
    """The loads with the whole block in the open stage, if the block is parallel."""
    branches: tuple["Walk", ...] = ()
    merged: tuple[Shares, ...] = ()
    """The loads after merging 0, 1, ... branches, if the block is parallel."""


@dataclass(slots=True)
class Walk:
    """A walk over a series, without operator names because equal series share it."""

    steps: list[WalkStep]
    after: Shares
    """Loads at the end; 0 where the last stage can close there."""

    @property
    def closed(self) -> Mask:
        """Rows whose last stage can close at the end."""
        return self.steps[-1].closed


@dataclass(frozen=True, slots=True)
class ClosedStage:
    """A stage of a found partition."""

    ops: tuple[str, ...]
    units: int
    """Number of units of devices."""


@dataclass(frozen=True, slots=True)
class Backtrack:
    """Recovers the stages from a walk, for one setting and one target."""

    degrees: tuple[int, ...]
    reached: Sequence[Mask]
    """Whether a stage of a degree may close behind m devices, by devices in use: [degrees, devices in use + 1]."""
    setting: int
    target: int

    def end(self, series: Series, walk: Walk, devices: int, k: int) -> tuple[list[ClosedStage], tuple[str, ...]]:
        """Return the stages of a series on `devices`, and the operators of the stage left open at its end."""
        if not walk.closed[devices, self.setting, self.target]:
            return self._inside(series, walk, devices, k)
        devices, k = self._chosen(walk.steps[-1], devices)
        stages, tail = self._inside(series, walk, devices, k)
        return ([*stages, ClosedStage(tail, self.degrees[k])] if tail else stages), ()

    def _inside(self, series: Series, walk: Walk, devices: int, k: int) -> tuple[list[ClosedStage], tuple[str, ...]]:
        """Return the closed stages and the open stage's operators for row [devices, k] at the end of a series."""
        stages: list[ClosedStage] = []  # from the back
        current: list[str] = []  # operators, from the back, of the stage being collected
        tail: tuple[str, ...] | None = None
        for part, step in zip(reversed(series.parts), reversed(walk.steps[:-1]), strict=True):
            inner: list[ClosedStage] = []
            if isinstance(part, Leaf):
                current.append(part.op)
                if not step.closed[devices, self.setting, self.target]:
                    continue
            elif self._rides(step, devices, k):
                current.extend(reversed(part.ops))
                continue
            else:
                inner, tails, devices = self._split(part, step, devices, k)
                current.extend(reversed(tails))
            ops, current = tuple(reversed(current)), []
            if tail is None:
                tail = ops
            elif ops:
                stages.append(ClosedStage(ops, self.degrees[k]))
            stages.extend(reversed(inner))
            devices, k = self._chosen(step, devices)
        # If a whole block joined the first stage, no operator opened that stage.
        first = tuple(reversed(current))
        if tail is None:
            return stages[::-1], first
        if first:
            stages.append(ClosedStage(first, self.degrees[k]))
        return stages[::-1], tail

    def _rides(self, step: WalkStep, devices: int, k: int) -> bool:
        assert step.riding is not None
        at = (slice(None), k, devices, self.setting, self.target)
        return bool(fullness(step.riding[at]) <= fullness(step.merged[-1][at]))

    def _split(self, part: Parallel, step: WalkStep, devices: int, k: int) -> tuple[list[ClosedStage], list[str], int]:
        """Return the closed stages of all branches, the operators left open, and the devices left upstream."""
        stages: list[ClosedStage] = []
        tails: list[str] = []
        at = (slice(None), k, slice(None), self.setting, self.target)
        for branch, walk, before in zip(
            reversed(part.branches), reversed(step.branches), reversed(step.merged[:-1]), strict=True
        ):
            totals = before[at][:, devices::-1] + walk.after[at][:, : devices + 1]
            count = int(fullness(totals).argmin())
            closed, tail = self.end(branch, walk, count, k)
            stages[:0] = closed
            tails[:0] = tail
            devices -= count
        return stages, tails, devices

    def _chosen(self, step: WalkStep, devices: int) -> tuple[int, int]:
        """Return the row [devices, k] that closes before this step: an empty one, else the one of largest load.

        The largest load leads to the fewest stages.
        """
        load = fullness(step.before[:, :, : devices + 1, self.setting, self.target])
        # A load of 0 is the least. The stage is then empty, whatever its degree would be.
        if load[0, row := int(load[0].argmin())] == 0.0:
            return row, 0
        fits = step.fits[:, : devices + 1, self.setting, self.target] & self.reached[devices]
        row, k = divmod(int(np.where(fits, load, _NO_LOAD).T.argmax()), len(self.degrees))
        assert fits[k, row], "a stage must close at a closed cut"
        return row, k


def fullness(load: Shares) -> Shares:
    """Return the larger of the shares of time and of memory."""
    return load[0] if load.shape[0] == 1 else np.maximum(load[0], load[1])
