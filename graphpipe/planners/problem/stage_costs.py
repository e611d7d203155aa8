"""The seconds of a stage, the memory it may use, and the micro-batch sizes and degrees worth trying."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem

Array = NDArray[np.float64]


LEAST_LOAD = 1e-12  # seconds: an operator that takes no time still belongs to a stage


def micro_batch_sizes(batch_size: int) -> list[int]:
    """Return the micro-batch sizes to try, ascending: the divisors of the mini-batch.

    A prime number has none in between. Then the sizes of 2, 4, 8, ... micro-batches are tried, of which the last one is
    short.
    """
    divisors = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
    if len(divisors) > 2 or batch_size <= 3:
        return divisors
    halved = (-(-batch_size // 2**times) for times in range(1, batch_size.bit_length()))
    return sorted({*divisors, *halved})


def stage_seconds(
    problem: Problem, costs: CostModel, micro_batch: int, degree: int, types: Sequence[str] | None = None
) -> Array:
    """Return seconds per micro-batch that each operator adds to a stage: forward, backward, its share of the update.

    The forward counts twice if stages recompute. The seconds are those on the slowest of `types`; None: of all types
    in the cluster.
    """
    types = types or sorted({device.type for device in problem.cluster.devices})
    by_kind = [costs.seconds(kind, micro_batch / degree) for kind in types]
    again = [(seconds[0], *seconds) for seconds in by_kind] if problem.recompute == "full" else by_kind
    compute = np.max([np.sum(seconds, axis=0) for seconds in again], axis=0)
    update_per_byte = update_seconds_per_byte(problem, degree)
    update = costs.op_bytes.trainable * update_per_byte * micro_batch / problem.batch_size
    return np.maximum(compute + update, LEAST_LOAD)


def update_seconds_per_byte(problem: Problem, degree: int) -> float:
    """Return the seconds per byte of trainable parameters of an update: all-reduce, then optimizer step.

    If replicas shard the optimizer's state, each updates a share, and the weights are gathered. If they shard
    everything, a gather of weights takes the place of one half of the all-reduce.
    """
    reduce, optimizer = all_reduce_seconds_per_byte(problem, degree), problem.costs.optimizer_seconds_per_parameter_byte
    if problem.state == "whole":
        return reduce + optimizer
    return (1.5 if problem.state == "optimizer" else 1.0) * reduce + optimizer / degree


def all_reduce_seconds_per_byte(problem: Problem, degree: int) -> float:
    """Return the seconds per byte of a ring all-reduce over devices that are near each other."""
    link = problem.cluster.slowest_link(problem.cluster.link_levels.near_first[:degree])
    return 2 * (degree - 1) / degree / link.bandwidth_bytes_per_second if link else 0.0


def smallest_memory_bytes(problem: Problem) -> float:
    """Return the memory of the smallest device."""
    return problem.cluster.smallest_memory_bytes


def far_bandwidth(problem: Problem) -> float:
    """Return the bandwidth that a search assumes between stages; by default, the first of `LinkLevels.bandwidths`."""
    return problem.message_bandwidth or problem.cluster.link_levels.bandwidths[0]


def degrees_of(problem: Problem, micro_batch: int) -> tuple[int, ...]:
    """Return the data-parallel degrees that divide a micro-batch."""
    return tuple(degree for degree in range(1, len(problem.cluster.devices) + 1) if micro_batch % degree == 0)
