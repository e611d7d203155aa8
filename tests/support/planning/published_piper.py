"""Piper as published, with the paper's inputs (memory variants, tensor parallelism), cost model and algorithm.

The planner `piper` runs the same search over this package's graphs and costs.

References:
    Tarnawski, Narayanan, Phanishayee: Piper: multidimensional planner for DNN parallelization. NeurIPS 2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.baselines.downsets import Downsets, closed_sets
from graphpipe.planners.baselines.stage_cuts import BottleneckSearch, StageCut, StageCuts
from graphpipe.planners.problem.limits import MOST_DOWNSETS

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShare:
    """The costs of all nodes when each is split over some devices. Arrays [nodes, variants], at most two variants."""

    seconds: Array
    """Forward and backward of one micro-batch."""
    bytes_per_micro_batch: Array
    """Kept for each micro-batch in flight."""
    fixed_bytes: Array
    parameter_bytes: Array
    """[nodes]."""
    received_bytes: Array
    """[edges]: extra bytes the target's devices exchange when the edge is cut, one way."""
    sent_bytes: Array
    """[edges]: the same at the source's devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A problem for Piper."""

    edges: Sequence[tuple[int, int]]
    """(source, target) nodes."""
    edge_bytes: Array
    """Bytes of one micro-batch over each edge, one way."""
    shares: Mapping[int, TensorShare]
    """By tensor-parallel degree."""
    devices: int
    memory_bytes: float
    bytes_per_second: float
    micro_batches: int
    """Per mini-batch. Data-parallel degrees divide this number, and their sum does not exceed it."""

    @property
    def degrees(self) -> list[int]:
        """Data-parallel degrees."""
        return [degree for degree in range(1, self.devices + 1) if self.micro_batches % degree == 0]


def piper(instance: Instance, limit: int = MOST_DOWNSETS) -> list[StageCut]:
    """Return the stages, first to last, whose slowest takes the fewest seconds per micro-batch. Empty if none fit.

        dp[D][k][s] = min over D' in D, t, d of max(dp[D'][k - t d][s - d], TPS(D - D', t, d, s))

    A stage of degree d keeps ceil(s/d) micro-batches in flight, s being the sum of degrees from it to the end. Here
    that sum is the count that a `BottleneckSearch` keeps small, so the table has no dimension s.

    Raises:
        Infeasible: the graph has too many downsets.
    """
    count = len(next(iter(instance.shares.values())).seconds)
    needs = [0] * count
    for source, target in instance.edges:
        needs[source] |= 1 << target
    sets = closed_sets(needs, limit)
    downsets = Downsets.over(np.array([[inside >> node & 1 for node in range(count)] for inside in sets], np.bool_))
    found = BottleneckSearch(
        [_stage_cuts(instance, downsets, at) for at in range(1, len(downsets))], instance.devices
    ).solve()
    return found if all(cut.fits for cut in found) else []


def _stage_cuts(instance: Instance, downsets: Downsets, at: int) -> StageCuts:
    below = downsets.below(at)
    inside = downsets.members[at] & ~downsets.members[below]
    ends = np.array(instance.edges)
    entering = (~inside[:, ends[:, 0]] & inside[:, ends[:, 1]]).astype(np.float64)
    leaving = (inside[:, ends[:, 0]] & ~inside[:, ends[:, 1]]).astype(np.float64)
    most = min(instance.devices, instance.micro_batches)
    found: list[StageCuts] = []
    for tensor, share in instance.shares.items():
        cut = 2 * (entering @ (instance.edge_bytes + share.received_bytes))
        cut += 2 * (leaving @ (instance.edge_bytes + share.sent_bytes))
        parameters = inside @ share.parameter_bytes
        rows, compute, held = _steps(instance, share, inside.astype(np.float64), most)
        for degree in instance.degrees:
            if tensor * degree > instance.devices:
                break
            sync = 4 * (degree - 1) * parameters[rows] / degree / instance.micro_batches
            seconds = compute / degree + (cut[rows] / degree + sync) / instance.bytes_per_second
            same = np.full(len(rows), degree)
            limit = np.minimum(held * degree, most)
            # Nodes are recomputed one by one, as memory requires. The seconds include this.
            found.append(StageCuts(below[rows], same * tensor, seconds, same, limit, np.zeros(len(rows), np.bool_)))
    return StageCuts.concatenate(found)


def _steps(
    instance: Instance, share: TensorShare, inside: Array, most: int
) -> tuple[NDArray[np.intp], Array, NDArray[np.int64]]:
    """Return compute seconds of stages for every count y of micro-batches in flight, as steps.

    Returns:
        Three arrays [steps]: the stage (row of `inside`), its seconds, the largest y they hold for.
    """
    final = _knapsack(instance, share, inside, most)
    columns, counts = [final], [most]
    for y in range(1, most):
        column = _knapsack(instance, share, inside, y)
        if np.array_equal(column, final):  # The columns of all larger y are the same, because memory only gets tighter.
            break
        columns.insert(-1, column)
        counts.insert(-1, y)
    # Seconds that hold for a larger y hold for a smaller one.
    table = np.minimum.accumulate(np.stack(columns, axis=1)[:, ::-1], axis=1)[:, ::-1]
    last = np.append(table[:, 1:] != table[:, :-1], np.ones((len(table), 1), np.bool_), axis=1) & np.isfinite(table)
    rows, steps = np.nonzero(last)
    return rows, table[rows, steps], np.array(counts)[steps]


def _knapsack(instance: Instance, share: TensorShare, inside: Array, y: int) -> Array:
    """Return the seconds of each stage with y micro-batches in flight, one variant chosen per node.

    Every node begins with its fastest variant; nodes change to the other one, the cheapest seconds per byte saved
    first, until the stage fits; infinite where it never does (the public solver's fast heuristic).
    """
    memory = share.bytes_per_micro_batch * y + share.fixed_bytes
    fastest = share.seconds.argmin(axis=1)
    node = np.arange(len(memory))
    seconds, held = share.seconds[node, fastest], memory[node, fastest]
    slower, saved = share.seconds[node, -1 - fastest] - seconds, held - memory[node, -1 - fastest]
    useful = np.flatnonzero(saved > 1e-9)
    order = useful[np.argsort(slower[useful] / saved[useful], kind="stable")]
    chosen = inside[:, order]
    nothing = np.zeros((len(inside), 1))
    savings = np.concatenate((nothing, np.cumsum(chosen * saved[order], axis=1)), axis=1)
    penalty = np.concatenate((nothing, np.cumsum(chosen * slower[order], axis=1)), axis=1)
    enough = (inside @ held)[:, None] - savings <= instance.memory_bytes
    first = enough.argmax(axis=1)
    found = inside @ seconds + penalty[np.arange(len(inside)), first]
    return np.where(enough.any(axis=1), found, np.inf)
