"""PipeDream's partitioner as published: antichain states, replication, levels of the network, asynchronous 1F1B.

    level 1 (devices of a node)      s0 s0 s1 | s2 s2 s2      the best result of a node is one unit of the next level
    level 2 (nodes)                  [ ... ] [ ... ]

References:
    Narayanan et al.: PipeDream: generalized pipeline parallelism for DNN training. SOSP 2019, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.baselines.downsets import Downsets, closed_sets

Array = NDArray[np.float64]
STATES = 2_000
"""The most states allowed: the dynamic program visits every pair of them, and at lower levels every triple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network."""

    machines: int
    """The number of lower-level units that this level joins."""
    bytes_per_second: float
    """Between two units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """One stage: the operators of state `stop` that are not in state `start`, on some machines of the lowest level."""

    start: int
    stop: int
    replicas: int
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """The result of the dynamic program."""

    stages: tuple[Replicated, ...]
    seconds: float
    """Per mini-batch, of the slowest stage or transfer."""
    single_seconds: float
    """Per mini-batch, on one machine."""


def pipedream(graph: Graph, levels: Sequence[Level], *, compression: float | None = 1.0) -> Partitioning:
    """Return the partition of a profiled graph whose slowest stage is fastest.

        A(i, j, M) = min(T(i, j, M), min over k, m' of
                         max(A(i, k, M - m'), T(k, j, m'), 2 out(k) / (B m' rho), 2 out(j) / (B m' rho)))
        T(i, j, m) = (C + 4 (m - 1) P / (B m r)) / m

    States are the predecessor-closed sets of operators (each stands for the antichain of its last ones), C and P the
    compute seconds and parameter bytes between two states, out the bytes over a state's boundary, B the bandwidth of
    the level, r the machines of a level-below unit. The next level takes A of all machines as its C.

    Args:
        graph: has measured times, all for the same mini-batch size.
        levels: the network's levels, from inside a node outwards.
        compression: rho, the factor by which activations are compressed for transfer. None ignores transfers.

    Raises:
        InvalidInput: an operator without measured times.
        Infeasible: the graph has more states than 2,000.
    """
    states = _States.of(graph)
    compute, inside = states.compute, 1
    solved: list[_Solved] = []
    for number, level in enumerate(levels, start=1):
        solved.append(_Solved.of(states, compute, level, inside, compression, whole=number < len(levels)))
        compute, inside = solved[-1].best[:, :, level.machines], level.machines
    stages = [(0, len(states.members) - 1, 1)]
    for level in reversed(solved):
        stages = [(*cut[:2], cut[2] * times) for start, stop, times in stages for cut in level.cuts(start, stop)]
    return Partitioning(
        stages=tuple(_replicated(graph, states, *stage) for stage in stages),
        seconds=float(solved[-1].best[0, -1, levels[-1].machines]),
        single_seconds=float(states.compute[0, -1]),
    )


def _replicated(graph: Graph, states: "_States", start: int, stop: int, replicas: int) -> Replicated:
    inside = states.members[stop] & ~states.members[start]
    ops = tuple(name for name in graph.order if inside[graph.index[name]])
    return Replicated(start=start, stop=stop, replicas=replicas, ops=ops)


@dataclass(frozen=True, slots=True)
class _States:
    """The states, the empty one first, and costs between any two of them. Infinite if the two are not nested."""

    members: NDArray[np.bool_]
    compute: Array
    """[states, states]: seconds of the operators in the second but not in the first."""
    parameters: Array
    outputs: Array
    """[states]: bytes over the boundary; an output counts once."""

    @staticmethod
    def of(graph: Graph) -> "_States":
        needs = [sum(1 << graph.index[before] for before in graph.predecessors[op.name]) for op in graph.ops]
        sets = closed_sets(needs, STATES)
        members = np.array([[state >> op & 1 for op in range(len(needs))] for state in sets], dtype=np.bool_)
        nested = np.zeros((len(sets), len(sets)), dtype=np.bool_)
        downsets = Downsets.over(members)
        for at in range(len(sets)):
            nested[downsets.below(at), at] = True
        seconds = members @ np.array([_seconds(graph, position) for position in range(len(needs))])
        parameters = members @ np.array([op.parameter_bytes for op in graph.ops])
        compute = np.where(nested, seconds - seconds[:, None], np.inf)
        return _States(members, compute, parameters - parameters[:, None], _outputs(graph, members))


def _seconds(graph: Graph, position: int) -> float:
    measured = graph.ops[position].measured
    if measured is None:
        raise InvalidInput("has no measured times", where=f"op {graph.ops[position].name}")
    return measured.forward_seconds + measured.backward_seconds


def _outputs(graph: Graph, members: NDArray[np.bool_]) -> Array:
    found = np.zeros(len(members))
    for position, op in enumerate(graph.ops):
        readers = [graph.index[name] for name in graph.successors[op.name]]
        leaving = members[:, position] & ~members[:, readers].all(axis=1)
        samples = op.measured.samples if op.measured else 1
        found += leaving * op.output_bytes_per_sample * samples
    return found


@dataclass(frozen=True, slots=True)
class _Solved:
    """The dynamic program's table for one level."""

    best: Array
    """[states, states, machines + 1]: seconds from the first state to the second on so many machines."""
    came: NDArray[np.intp]
    """The state before the last stage, of the same shape; the first state itself where there is one stage."""
    last: NDArray[np.intp]
    """Machines of the last stage, of the same shape."""

    @staticmethod
    def of(
        states: _States, compute: Array, level: Level, inside: int, compression: float | None, *, whole: bool
    ) -> "_Solved":
        """Solve a level. `whole` solves from every state, for the next level, and not only from the first state."""
        count, machines = len(compute), level.machines
        starts = np.arange(count if whole else 1)
        stage = _stage_seconds(states, compute, level, inside)
        moved = np.zeros((count, count))
        if compression is not None:
            out = 2 * states.outputs / level.bytes_per_second / compression
            moved = np.maximum(out[:, None], np.append(out[:-1], 0.0))
        best = stage[starts]
        came = np.broadcast_to(starts[:, None, None], best.shape).copy()
        last = np.broadcast_to(np.arange(machines + 1), best.shape).copy()
        for j in range(1, count):
            for m in range(2, machines + 1):
                for used in range(1, m):
                    # k = the state before the last stage, which runs on `used` machines.
                    ends = np.maximum(stage[:, j, used], moved[:, j] / used)
                    trial = np.maximum(best[:, :j, m - used], ends[:j])
                    k = trial.argmin(axis=1)
                    better = trial[starts, k] < best[:, j, m]
                    best[better, j, m], came[better, j, m], last[better, j, m] = (
                        trial[starts, k][better],
                        k[better],
                        used,
                    )
        return _Solved(best, came, last)

    def cuts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (state, state, machines) of the stages between two states on all machines."""
        found: list[tuple[int, int, int]] = []
        machines = self.best.shape[2] - 1
        while stop != start:
            k, used = int(self.came[start, stop, machines]), int(self.last[start, stop, machines])
            found.insert(0, (k, stop, used))
            stop, machines = k, machines - used
        return found


def _stage_seconds(states: _States, compute: Array, level: Level, inside: int) -> Array:
    """Return T, of shape [states, states, machines + 1]. It is infinite for 0 machines."""
    machines = np.arange(1, level.machines + 1)
    sync = 4 * (machines - 1) * states.parameters[:, :, None] / (level.bytes_per_second * machines * inside)
    seconds = (compute[:, :, None] + sync) / machines
    return np.concatenate((np.full((*compute.shape, 1), np.inf), seconds), axis=2)
