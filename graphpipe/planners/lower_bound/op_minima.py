"""The least that an operator costs a device under every data-parallel degree: what lower bounds are made of."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.whole_batch_tail import whole_batch_tail

Array = NDArray[np.float64]
_ROUNDED = 1 + 1e-6
"""The verifier forgives this much memory."""


@dataclass(frozen=True, slots=True)
class LeastSeconds:
    """Seconds of a mini-batch and bytes that an operator adds to each device of its stage, at least.

    A stage whose micro-batches of b samples are split over d devices runs B / b of them, each of b / d samples per
    device, and synchronises and updates its weights once. Transfers and the latency of messages are left out, so
    no stage can take less than the sum over its operators. Each operator has the best micro-batch size for itself,
    among those at which its weights and one micro-batch of its activations fit the device: a stage has one for all.

    A stage that recomputes takes longer, and may forget all activations but those of the operator it computes again;
    these it holds for one micro-batch, as a stage that keeps everything does at the least.
    """

    degrees: tuple[int, ...]
    """Degrees that divide an allowed micro-batch size: all that the verifier lets a stage have."""
    seconds: dict[str, Array]
    """[operators, degrees] for each device type, infinite where the operator cannot be."""
    whole: dict[str, Array]
    """[operators] for each device type, on one device and the whole mini-batch at once; infinite but for whole-batch
    operators and what follows them."""
    state_bytes: Array
    """[operators]: weights, gradients and optimizer state, on every device of a stage."""
    saved_bytes: Array
    """[operators, degrees]: activations of the smallest micro-batch. A stage holds at least its operators' largest."""
    overhead_seconds: float
    """What a device that runs any stage spends on starting its tasks."""

    @staticmethod
    def of(problem: Problem, sizes: Collection[int] | None = None, *, hidden: Collection[str] = ()) -> "LeastSeconds":
        """Compute them.

        Args:
            problem: graph, costs, cluster and batch.
            sizes: micro-batch sizes that stages may have, divisors of the mini-batch; None: all. Whole-batch operators
                and what follows them may always have the mini-batch.
            hidden: operators whose gradients may be reduced beside other stages' computation: it takes nothing.
        """
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        batch, count = problem.batch_size, len(problem.cluster.devices)
        allowed = sorted(sizes or (size for size in range(1, batch + 1) if batch % size == 0), reverse=True)
        degrees = tuple(d for d in range(1, count + 1) if any(size % d == 0 for size in allowed))
        inside = whole_batch_tail(problem.graph)
        tail = np.array([op.name in inside for op in problem.graph.ops])
        alone = np.array([op.whole_batch for op in problem.graph.ops])
        seconds: dict[str, Array] = {}
        whole: dict[str, Array] = {}
        for kind in sorted({device.type for device in problem.cluster.devices}):
            capacity = problem.cluster.types[kind].memory_bytes * _ROUNDED + 1
            columns = [_fastest(costs, kind, batch, [b for b in allowed if b % d == 0], d, capacity) for d in degrees]
            update = np.stack([_update_seconds(problem, costs, d, hidden) for d in degrees], axis=1)
            seconds[kind] = np.where(alone[:, None], np.inf, np.stack(columns, axis=1) + update)
            at_once = _fastest(costs, kind, batch, [batch], 1, capacity) + _update_seconds(problem, costs, 1, hidden)
            whole[kind] = np.where(tail, at_once, np.inf)
        least = [min(size for size in allowed if size % d == 0) / d for d in degrees]
        saved = costs.saved_bytes[:, None] * np.array(least)
        runs = 1 if tail.any() else batch / allowed[0]
        overhead = 2 * runs * problem.costs.task_overhead_seconds
        return LeastSeconds(degrees, seconds, whole, costs.least_state_bytes, saved, overhead)

    @property
    def anywhere(self) -> Array:
        """[operators]: on the best device type and degree."""
        choices = [np.column_stack((self.seconds[kind], self.whole[kind])) for kind in self.seconds]
        return np.min(np.concatenate(choices, axis=1), axis=1)


def _fastest(costs: CostModel, kind: str, batch: int, sizes: list[int], degree: int, capacity: float) -> Array:
    """Return the seconds of the mini-batch's forwards and backwards of every operator.

    Curves are affine or the largest of affine ones with no negative part, so an operator's time per sample never rises
    with the samples: the largest size (they come first) that fits is the best.
    """
    found = np.full(len(costs.graph.ops), np.inf)
    for size in sizes:
        samples = size / degree
        fits = np.isinf(found) & (costs.state_bytes_by_op + costs.saved_bytes * samples <= capacity)
        if fits.any():
            found[fits] = np.sum(costs.seconds(kind, samples), axis=0)[fits] * (batch / size)
        if np.isfinite(found).all():
            break
    return found


def _update_seconds(problem: Problem, costs: CostModel, degree: int, hidden: Collection[str]) -> Array:
    """Return the seconds of every operator's gradient all-reduce, over the best links there may be, and optimizer.

    What operators share counts with one of them: a stage of several has it once.
    """
    per_byte = np.full(len(problem.graph.ops), problem.costs.optimizer_seconds_per_parameter_byte)
    if degree > 1:
        seen = np.array([op.name not in hidden for op in problem.graph.ops])
        per_byte[seen] += 2 * (degree - 1) / degree / _bandwidth(problem, degree)
    return costs.least_trainable_bytes * per_byte


def _bandwidth(problem: Problem, degree: int) -> float:
    """Return the bandwidth that no ring of so many devices exceeds: one that no node holds crosses between nodes."""
    cluster = problem.cluster
    links = [cluster.inter_node, *(pair.link for pair in cluster.pair_links)]
    if degree <= max(Counter(device.node for device in cluster.devices).values()):
        links.append(cluster.intra_node)
    return max(link.bandwidth_bytes_per_second for link in links)
