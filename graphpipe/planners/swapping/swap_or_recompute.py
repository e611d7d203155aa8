"""Fit a stage into memory as DawnPiper and vPipe do: by the operators of least seconds per byte freed.

    operators by seconds of recomputation per byte     o4 o1 o3 o2 o5
    recomputed, the cheapest first                     o4 o1 ->
    swapped, the dearest first                                  <- o5         while its copies hide behind computing

Swapping costs max(0, 2 bytes / bandwidth - window) seconds, and recomputing costs the forward.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel, Recompute
from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.planners.problem.limits import PASSES
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.stage import OTHER_BACKWARDS, Stage

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SwapOrRecompute:
    """Costs of swapping and recomputation for micro-batches of one size."""

    problem: Problem
    costs: CostModel
    samples: float
    """Samples of a micro-batch on one device."""
    forward: Array
    """Seconds of each operator's forward for these samples, on the slowest type, in order of the graph."""
    host_bandwidth: float
    """Bytes per second between a device and the memory of its node, of the slowest type."""
    host_bytes: float
    """Bytes that a device may use of the memory of its node."""

    @staticmethod
    def of(problem: Problem, costs: CostModel, samples: float) -> "SwapOrRecompute":
        """Return the costs for this many samples."""
        cluster = problem.cluster
        kinds = sorted({device.type for device in cluster.devices})
        shared = [
            cluster.host_memory_bytes(node) / sum(device.node == node for device in cluster.devices)
            for node in {device.node for device in cluster.devices}
        ]
        return SwapOrRecompute(
            problem,
            costs,
            samples,
            forward=np.max([costs.seconds(kind, samples)[0] for kind in kinds], axis=0),
            host_bandwidth=min(kind.host_bandwidth_bytes_per_second for kind in cluster.device_types),
            host_bytes=min(shared),
        )

    def fitted(self, stage: Stage, capacity_bytes: float, *, window_seconds: float) -> Stage:
        """Return the stage with decisions that let it fit; if none do, the stage that recomputes in full.

        If mini-batches overlap, a stage recomputes in full or not at all. If its backward reads other
        weights than its forward, it never does.

        Args:
            stage: that keeps everything, and does not fit.
            capacity_bytes: of a device.
            window_seconds: copies of a micro-batch take no time as far as they fit into this.
        """
        if self.problem.weights != "flush":
            return stage if self.problem.weights in OTHER_BACKWARDS else replace(stage, recompute="full")
        short = self._bytes(stage) - capacity_bytes
        goal = short
        for _ in range(PASSES):
            window = 0.0 if self.problem.cluster.copies_take_devices else window_seconds
            freed, everything = self._freeing(stage, goal, window)
            missing = self._bytes(freed) - capacity_bytes
            if missing <= 0 and self._has_room(freed):
                return freed
            if everything:
                break
            goal += max(missing, 0.01 * short)
        return replace(stage, recompute="full")

    def added_seconds(self, stage: Stage, *, window_seconds: float) -> float:
        """Return the seconds per micro-batch that the decisions of a stage take."""
        window = 0.0 if self.problem.cluster.copies_take_devices else window_seconds
        again, plain = (self._backward_seconds(stage, recompute) for recompute in (stage.recompute, "none"))
        moved = 2 * stage_memory(self.costs, stage).offloaded * self.samples / self.host_bandwidth
        return again - plain + max(0.0, moved - window)

    def _backward_seconds(self, stage: Stage, recompute: Recompute) -> float:
        devices = range(len(self.problem.cluster.devices))
        return max(task.backward for task in self.costs.tasks_seconds(stage.ops, devices, self.samples, recompute))

    def _freeing(self, stage: Stage, goal_bytes: float, window: float) -> tuple[Stage, bool]:
        """Return the stage with decisions that free about so many bytes, and whether no further ones are possible."""
        # 1. Order the operators by the seconds per byte that recomputing them costs.
        at = self.costs.positions(stage.ops)
        saved, held = self.costs.op_bytes.saved_of(self.samples)[at], stage.in_flight / stage.degree
        per_byte = np.divide(self.forward[at], saved * self.samples, out=np.full(len(at), inf), where=saved > 0)
        order = np.argsort(per_byte, kind="stable")
        order = order[saved[order] > 0]
        # 2. Swap the dearest while their copies hide behind computing.
        freed_samples = held - min(held, MOVING_MICRO_BATCHES * self.samples)
        copied = np.cumsum(2 * saved[order[::-1]] * self.samples / self.host_bandwidth)
        freed = np.cumsum(saved[order[::-1]] * freed_samples)
        hidden = (copied <= window) & (np.cumsum(saved[order[::-1]] * held) <= self.host_bytes) & (freed_samples > 0)
        needed = np.concatenate(([0.0], freed[:-1])) < goal_bytes
        swaps = int(np.count_nonzero(hidden & needed))
        goal_bytes -= float(freed[swaps - 1]) if swaps else 0.0
        # 3. Recompute the cheapest. From where swapping costs less per byte, swap.
        left = order[: len(order) - swaps]
        swapping = 2 / self.host_bandwidth * held / freed_samples if freed_samples > 0 else inf
        cheap = left[per_byte[left] <= swapping]
        again = cheap[: self._enough(saved[cheap] * held, goal_bytes)]
        goal_bytes -= float((saved[again] * held).sum())
        dear = left[len(cheap) :]
        more = dear[: self._enough(saved[dear] * freed_samples, goal_bytes)]
        swapped = [*order[len(order) - swaps :], *more]
        names = [stage.ops[place] for place in sorted(swapped)]
        changed = replace(
            stage, recompute=tuple(stage.ops[place] for place in sorted(again)) or "none", offload=(*names,)
        )
        # Every count below only grows with the goal.
        everything = swaps == np.count_nonzero(hidden) and len(again) == len(cheap) and len(more) == len(dear)
        return changed, everything

    @staticmethod
    def _enough(freed: Array, goal_bytes: float) -> int:
        """Return how many of the first operators free so many bytes; all of them if they do not."""
        if goal_bytes <= 0:
            return 0
        return min(len(freed), 1 + int(np.searchsorted(np.cumsum(freed), goal_bytes)))

    def _has_room(self, stage: Stage) -> bool:
        """Return whether the memory of the node has room for what a stage swaps."""
        return stage_memory(self.costs, stage).offloaded * stage.in_flight / stage.degree <= self.host_bytes

    def _bytes(self, stage: Stage) -> float:
        return float(stage_memory(self.costs, stage).total(stage.in_flight / stage.degree))
