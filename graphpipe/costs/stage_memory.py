"""The memory of a stage: one formula for planners, simulator and reports.

The verifier counts the same bytes with its own formula (`plans/verify_memory.py`), so an error in either is detected.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

NORM_COPY_BYTES = 2**20
"""Up to this many bytes of gradients, a replica computes their norm of one copy of all of them, which is faster than
one norm per gradient. The copy is there between the last backward and the optimizer's step."""
Array = NDArray[np.float64]
Bytes = TypeVar("Bytes", float, Array)


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenHalves:
    """Bytes per sample that a stage keeps from the end of the first half of a split backward to that of the second."""

    own: float
    """What its operators keep, with the gradients that those of the weights wait with, if these are known."""
    received: float
    """What other stages sent."""
    received_share: float
    """`received` in units of all that other stages sent."""
    share: float
    """`own` and `received` together, in units of what a sample in flight keeps until then. Gradients may make it larger
    than 1."""
    has_gradients: bool = True
    """Whether `own` includes gradients. A share of the saved bytes does not (`CostTable.kept_for_weight_gradient`)."""

    @property
    def counted_share(self) -> float:
        """How much of a sample in flight a sample between the halves counts as: never more than one."""
        return min(1.0, self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory(Generic[Bytes]):
    """Bytes on each device of one stage, or arrays of bytes for many stages or operators at once.

        total(n) = state + (saved + received) * n + min(offloaded * n, moving) + recomputed + temporary

    n is the number of samples that the device keeps in flight. The last two terms are held only while a task runs. A
    device runs one task at a time, so it needs the largest sum of these two among all stages that it hosts.
    """

    state: Bytes
    """Bytes of parameters, gradients and optimizer state on the fullest replica."""
    saved: Bytes
    """Bytes that the operators keep for the backward pass, per sample in flight."""
    received: Bytes | float = 0.0
    """Bytes that other stages sent, per sample in flight."""
    offloaded: float = 0.0
    """Bytes that are offloaded between forward and backward, per sample in flight."""
    moving: float = 0.0
    """The most offloaded bytes on the device: of the micro-batch whose task runs, and of one that is copied."""
    recomputed: Bytes | float = 0.0
    """Bytes that a backward recomputes, for the samples of one micro-batch."""
    temporary: Bytes | float = 0.0
    """The most bytes that one operator holds while it runs; 0 if costs were not profiled."""

    @staticmethod
    def summed(
        state: Bytes,
        saved: Bytes,
        *,
        recompute: Literal["none", "full"],
        samples: Bytes | float,
        received: Bytes | float = 0.0,
        temporary: Bytes | float = 0.0,
    ) -> "StageMemory[Bytes]":
        """Return the memory of stages from sums over their operators.

        Args:
            state: parameters, gradients and optimizer state.
            saved: per sample, what the operators save for the backward pass.
            recompute: `full`: the stages keep nothing of `saved` in flight, but hold it for one micro-batch.
            samples: of one micro-batch on one device.
            received: per sample, what other stages send.
            temporary: what one operator holds while it runs.
        """
        if recompute == "none":
            return StageMemory(state=state, saved=saved, received=received, temporary=temporary)
        return StageMemory(
            state=state, saved=saved * 0.0, received=received, recomputed=saved * samples, temporary=temporary
        )

    @property
    def per_sample(self) -> Bytes:
        """What each sample in flight keeps, from the start of its forward to the end of its backward."""
        return self.saved + self.received

    @property
    def transient(self) -> Bytes | float:
        """What the stage holds only while one of its tasks runs."""
        return self.recomputed + self.temporary

    def resident(self, in_flight: Bytes | float, arriving: float = 0.0) -> Bytes:
        """Return what the stage holds between tasks, with this many samples in flight on each device.

        Args:
            in_flight: samples on each device.
            arriving: per sample in flight, what other stages send besides `received`.
        """
        held = self.state + (self.per_sample + arriving) * in_flight
        return held + min(self.offloaded * float(in_flight), self.moving) if self.offloaded else held

    def total(self, in_flight: Bytes | float, arriving: float = 0.0) -> Bytes:
        """Return the most that the stage holds, with the arguments of `resident`."""
        return self.resident(in_flight, arriving) + self.transient
