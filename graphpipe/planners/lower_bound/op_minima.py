"""The least cost of each operator on a device for every data-parallel degree, the input of the lower bounds."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, StageMemory
from graphpipe.planners.problem.partition import Problem

Array = NDArray[np.float64]
_ROUNDED = 1 + 1e-6
"""The verifier tolerates this much memory above the capacity."""


@dataclass(frozen=True, slots=True)
class OpMinima:
    """Lower bounds on the seconds per mini-batch and the bytes that each operator adds to each device of its stage.

    A stage with micro-batches of b samples on d devices runs B / b micro-batches of b / d samples per device, and
    synchronises and updates its weights once. Transfers and the latency of messages are ignored, so every stage takes
    at least the sum over its operators. Each operator has its own best micro-batch size, although a stage has one size
    for all. The weights and one micro-batch of activations of the operator must fit on the device at that size.

    A stage that recomputes takes longer. It may free all activations except those of the operator that it recomputes.
    It holds these for one micro-batch, which is also the least that a stage without recomputation holds.

    If replicas may shard their state (`Stage.state`), the fullest one holds at least an equal share of the optimizer's
    state, beside whole weights and gradients. The busiest one updates at least an equal share of the weights.
    """

    degrees: tuple[int, ...]
    """Degrees that divide an allowed micro-batch size, which are all that the verifier allows."""
    seconds: dict[str, Array]
    """[operators, degrees] for each device type: least seconds; infinite if the operator cannot run there."""
    whole: dict[str, Array]
    """[operators] for each device type: least seconds on one device with the whole mini-batch at once; infinite outside
    the whole-batch tail."""
    state_bytes: Array
    """[operators, degrees]: weights, gradients and optimizer state, on the fullest device of a stage."""
    whole_state_bytes: Array
    """[operators]: weights, gradients and optimizer state on one device."""
    saved_bytes: Array
    """[operators]: activations of one sample. A stage holds at least the largest of its operators for a micro-batch."""
    samples: Array
    """[degrees]: samples of the smallest micro-batch on each device."""
    overhead_seconds: float
    """Least time that a device with a stage spends on starting tasks."""

    @staticmethod
    def of(
        problem: Problem,
        sizes: Collection[int] | None = None,
        *,
        hidden: Collection[str] = (),
        sharded: bool = False,
    ) -> "OpMinima":
        """Compute the minima of a problem.

        Args:
            problem: graph, costs, cluster and batch.
            sizes: micro-batch sizes that stages may have, divisors of the mini-batch; None: all. The whole-batch tail
                may always have the mini-batch.
            hidden: operators whose all-reduce counts 0 seconds, because it can overlap other stages' computation.
            sharded: whether replicas may shard their state.
        """
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        batch, count = problem.batch_size, len(problem.cluster.devices)
        allowed = sorted(sizes or (size for size in range(1, batch + 1) if batch % size == 0), reverse=True)
        degrees = tuple(d for d in range(1, count + 1) if any(size % d == 0 for size in allowed))
        inside = problem.graph.whole_batch_tail
        tail = np.array([op.name in inside for op in problem.graph.ops])
        whole_batch = np.array([op.whole_batch for op in problem.graph.ops])
        parts = {degree: degree if sharded else 1 for degree in (1, *degrees)}
        seconds: dict[str, Array] = {}
        whole: dict[str, Array] = {}
        for kind in sorted({device.type for device in problem.cluster.devices}):
            capacity = problem.cluster.types[kind].memory_bytes * _ROUNDED + 1
            columns = [
                _fastest(costs, kind, batch, [b for b in allowed if b % d == 0], d, parts[d], capacity) for d in degrees
            ]
            update = np.stack([_update_seconds(problem, costs, d, parts[d], hidden) for d in degrees], axis=1)
            seconds[kind] = np.where(whole_batch[:, None], np.inf, np.stack(columns, axis=1) + update)
            at_once = _fastest(costs, kind, batch, [batch], 1, 1, capacity)
            at_once += _update_seconds(problem, costs, 1, 1, hidden)
            whole[kind] = np.where(tail, at_once, np.inf)
        samples = np.array([min(size for size in allowed if size % d == 0) / d for d in degrees])
        runs = 1 if tail.any() else batch / allowed[0]
        overhead = 2 * runs * problem.costs.task_overhead_seconds
        held = costs.op_bytes
        state = np.stack([held.least_held(parts[degree]) for degree in degrees], axis=1)
        return OpMinima(degrees, seconds, whole, state, held.least_state, held.saved, samples, overhead)

    @property
    def anywhere(self) -> Array:
        """[operators]: seconds on the best device type and degree."""
        choices = [np.column_stack((self.seconds[kind], self.whole[kind])) for kind in self.seconds]
        return np.min(np.concatenate(choices, axis=1), axis=1)


def _fastest(
    costs: CostModel, kind: str, batch: int, sizes: list[int], degree: int, parts: int, capacity: float
) -> Array:
    """Return the seconds of every operator's forwards and backwards of the mini-batch.

    A cost curve is affine or a maximum of affine functions, without negative coefficients. So an operator's time per
    sample never rises with the number of samples, and the largest size that fits is the best. `sizes` descend.
    The optimizer's state is in `parts` equal parts.
    """
    fastest = np.full(len(costs.graph.ops), np.inf)
    memory = StageMemory(state=costs.op_bytes.held("optimizer", parts), saved=costs.op_bytes.saved)
    for size in sizes:
        samples = size / degree
        fits = np.isinf(fastest) & (memory.total(samples) <= capacity)
        if fits.any():
            fastest[fits] = np.sum(costs.seconds(kind, samples), axis=0)[fits] * (batch / size)
        if np.isfinite(fastest).all():
            break
    return fastest


def _update_seconds(problem: Problem, costs: CostModel, degree: int, parts: int, hidden: Collection[str]) -> Array:
    """Return the seconds of every operator's gradient all-reduce, over the best possible links, and optimizer step.

    A parameter that several operators share counts for one of them, because a stage of several holds it once. The
    optimizer step is in `parts` equal parts. A gather of sharded weights and a reduce-scatter of their gradients take
    at least as long as the all-reduce.
    """
    per_byte = np.full(len(problem.graph.ops), problem.costs.optimizer_seconds_per_parameter_byte / parts)
    if degree > 1:
        seen = np.array([op.name not in hidden for op in problem.graph.ops])
        per_byte[seen] += 2 * (degree - 1) / degree / ring_bandwidth(problem.cluster, degree)
    return costs.op_bytes.least_trainable * per_byte


def ring_bandwidth(cluster: Cluster, degree: int) -> float:
    """Return an upper bound on the bandwidth of a ring over `degree` devices, in bytes per second.

    A ring that is larger than every group of a level has a link of a farther one.
    """
    size = Counter(device.node for device in cluster.devices)
    wide = [level for level in cluster.every_level if degree <= max(sum(map(size.__getitem__, g)) for g in level.nodes)]
    links = [cluster.inter_node, *(level.link for level in wide), *(pair.link for pair in cluster.pair_links)]
    return max(link.bandwidth_bytes_per_second for link in links)
