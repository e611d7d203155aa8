"""A lower bound from total work: the device-seconds and bytes of a mini-batch against those of the cluster."""

import numpy as np

from graphpipe.planners.lower_bound.op_minima import Array, OpMinima
from graphpipe.planners.problem.partition import Problem

_HALVINGS = 40


def device_seconds_bound(problem: Problem, least: OpMinima) -> float:
    """Return a lower bound on the seconds in which all devices together do the work of a mini-batch.

    If the slowest device takes t seconds, each operator's stage has a degree at which the operator takes at most t. It
    uses degree times its seconds of the devices' total. If the degrees with the fewest device-seconds need more bytes
    than all devices have, a linear programme chooses fractions of the degrees within both limits.
    """
    # Infinite if an operator does not fit on any device.
    low = float(least.anywhere.max())
    total, single = _choices(least)
    devices, capacity = _resources(problem)
    high = max(low, float(total.min(axis=1).sum()))
    if not np.isfinite(high):
        return high
    bytes_ = _bytes(least)

    def within(seconds: float) -> bool:
        allowed = np.where(single <= seconds, total, np.inf)
        if allowed.min(axis=1).sum() > devices * seconds:
            return False
        lightest = np.take_along_axis(bytes_, allowed.argmin(axis=1)[:, None], axis=1).sum()
        return lightest <= capacity or _split(allowed, bytes_, capacity) <= devices * seconds

    if within(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return low


def _choices(least: OpMinima) -> tuple[Array, Array]:
    """Return, of shape [operators, degrees and the whole batch at once], the device-seconds and the seconds."""
    seconds = np.min(list(least.seconds.values()), axis=0)
    single = np.column_stack((seconds, np.min(list(least.whole.values()), axis=0)))
    return single * np.array([*least.degrees, 1.0]), single


def _bytes(least: OpMinima) -> Array:
    """Return the bytes of state that all devices of a stage hold of an operator, for every choice."""
    return np.column_stack((least.state_bytes * np.array(least.degrees), least.whole_state_bytes))


def _resources(problem: Problem) -> tuple[int, float]:
    devices = problem.cluster.devices
    capacity = sum(problem.cluster.types[device.type].memory_bytes * (1 + 1e-6) + 1 for device in devices)
    return len(devices), capacity


def _split(total: Array, bytes_: Array, capacity: float) -> float:
    """Return the fewest device-seconds of fractions of the allowed choices within the bytes."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    row, column = np.nonzero(np.isfinite(total))
    count = len(row)
    one_each = coo_array((np.ones(count), (row, np.arange(count))), shape=(len(total), count))
    solution = linprog(
        total[row, column],
        A_ub=bytes_[row, column][None] / capacity,
        b_ub=np.ones(1),
        A_eq=one_each.tocsr(),
        b_eq=np.ones(len(total)),
        method="highs",
    )
    return float(solution.fun) if solution.status == 0 else np.inf
