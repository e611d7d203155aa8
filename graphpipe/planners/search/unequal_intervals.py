"""Partitions for unequal devices: intervals of an operator order, longer on faster devices.

    order    a  b  c  d  e  f  g  h  i          two fast devices, two slow ones of half their speed
             |--fast--|--fast--|slow|slow|      all stages take equally long

The devices of a stage are of one type. For a target of seconds per stage, a dynamic program finds the furthest
operator that u devices of one type and v of another can reach. Every stage takes as many operators as it can, because
a stage that starts later never ends earlier. Bisection finds the least target that reaches the last operator. Stages
that are neighbours in the order but do not feed each other run side by side.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel, StageMemory
from graphpipe.graph import Graph
from graphpipe.planners.problem.limits import HALVINGS, MEDIUM
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.stage_costs import far_bandwidth, micro_batch_sizes, stage_seconds

Used = tuple[int, ...]
"""Units of devices of each type."""


@dataclass(frozen=True, slots=True)
class TypedPart:
    """A part, and the type of its devices."""

    part: Part
    type: str


@dataclass(frozen=True, slots=True)
class _Team:
    """Devices of one type that may form a stage, with prefix sums of the operators' seconds on them."""

    kind: int
    """Position of the team's device type."""
    units: int
    degree: int
    seconds: NDArray[np.float64]
    """Seconds of the first 0, 1, ... operators, per micro-batch."""
    full: NDArray[np.intp]
    """For each start of a stage: the furthest end at which it fits in memory."""

    def reaches(self, target: float) -> NDArray[np.intp]:
        """Return for each start the furthest end of a stage that takes at most `target` seconds and fits."""
        slow = np.searchsorted(self.seconds, self.seconds + target, side="right") - 1
        return np.minimum(slow, self.full)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The possible stages of one operator order, for one micro-batch size and least degree."""

    order: tuple[str, ...]
    micro_batch: int
    types: tuple[str, ...]
    units: Used
    """Units of devices of each type."""
    teams: tuple[_Team, ...]
    cut_seconds: tuple[float, ...]
    """Seconds to send the bytes that cross before operator 0, 1, ..., and after the last, on one device."""

    @staticmethod
    def of(
        problem: Problem, costs: CostModel, graph: Graph, order: Sequence[str], micro_batch: int, unit: int, held: int
    ) -> "Intervals":
        """Compute the sums for every team of devices.

        Args:
            problem: graph, costs, cluster and batch.
            costs: the cost look-up of the problem.
            graph: the graph to cut, which may be a part of the problem's graph.
            order: a topological order of `graph`.
            micro_batch: samples of a micro-batch.
            unit: least data-parallel degree.
            held: assumed samples in flight of every stage.
        """
        types, counts = zip(*sorted(Counter(device.type for device in problem.cluster.devices).items()), strict=True)
        units = tuple(count // unit for count in counts)
        teams: list[_Team] = []
        at = costs.positions(order)
        for kind, most in enumerate(units):
            capacity = problem.cluster.types[types[kind]].memory_bytes
            for size in range(1, most + 1):
                degree = size * unit
                if micro_batch % degree == 0:
                    seconds = stage_seconds(problem, costs, micro_batch, degree, (types[kind],))[at]
                    memory = StageMemory.summed(
                        costs.op_bytes.held(problem.state, degree)[at],
                        costs.op_bytes.saved_of(micro_batch / degree)[at],
                        recompute=problem.recompute,
                        samples=micro_batch / degree,
                    )
                    shares = memory.total(held / degree) / capacity
                    filled = _sums(shares)
                    full = np.searchsorted(filled, filled + 1.0, side="right") - 1
                    teams.append(_Team(kind, size, degree, _sums(seconds), full))
        cut = _cut_bytes(graph, order) * micro_batch / far_bandwidth(problem)
        return Intervals(tuple(order), micro_batch, types, units, tuple(teams), tuple(cut.tolist()))

    def best(self, ceiling: float) -> list[TypedPart]:
        """Return the stages with the fastest bottleneck, up to `ceiling` seconds per micro-batch; empty if none."""
        low, high = 0.0, min(ceiling, max((float(team.seconds[-1]) for team in self.teams), default=0.0))
        intervals = self.within(high)
        for _ in range(HALVINGS if intervals else 0):
            middle = (low + high) / 2
            if trial := self.within(middle):
                intervals, high = trial, middle
            else:
                low = middle
        return intervals

    def within(self, target: float) -> list[TypedPart]:
        """Return the fewest stages that each take at most `target` seconds per micro-batch; empty if none."""
        allowed = {team.degree: self._allowed(target * team.degree) for team in self.teams}
        reaches = [allowed[team.degree][team.reaches(target)].tolist() for team in self.teams]
        steps = _steps(self.units, tuple((team.kind, team.units) for team in self.teams))
        # By the units that are used: the furthest end, the number of stages, and the team of the last one.
        ends, stages, last = [0] * len(steps), [0] * len(steps), [-1] * len(steps)
        for state, before_and_team in enumerate(steps):
            furthest = fewest = 0
            for before, team in before_and_team:
                start = ends[before]
                end = reaches[team][start]
                if end <= start or (before and not start):
                    continue
                if end > furthest or (end == furthest and stages[before] + 1 < fewest):
                    furthest, fewest, last[state] = end, stages[before] + 1, team
            ends[state], stages[state] = furthest, fewest
        whole = [state for state, end in enumerate(ends) if end == len(self.order)]
        return self._way_back(ends, last, min(whole, key=stages.__getitem__)) if whole else []

    def _allowed(self, seconds: float) -> NDArray[np.intp]:
        """Return for each end of a stage the latest end up to it at which sending takes at most this long."""
        cut = np.asarray(self.cut_seconds)
        return np.maximum.accumulate(np.where(cut <= seconds, np.arange(len(cut)), 0))

    def _way_back(self, ends: Sequence[int], last: Sequence[int], state: int) -> list[TypedPart]:
        parts: list[TypedPart] = []
        strides = _strides(self.units)
        while last[state] >= 0:
            team = self.teams[last[state]]
            before = state - team.units * strides[team.kind]
            ops = self.order[ends[before] : ends[state]]
            parts.append(TypedPart(Part(ops, team.degree, self.micro_batch), self.types[team.kind]))
            state = before
        return parts[::-1]


def _strides(units: Used) -> tuple[int, ...]:
    # A state is the number of what is used: (1, 2) of (3, 4) units is 1 * 5 + 2.
    return tuple(prod(most + 1 for most in units[kind + 1 :]) for kind in range(len(units)))


@lru_cache(maxsize=64)
def _steps(units: Used, teams: tuple[tuple[int, int], ...]) -> list[list[tuple[int, int]]]:
    """Return for each state the states before it, each with the position of the team that leads from it to this one.

    Args:
        units: of devices of each type.
        teams: the position of the type, and the units, of each team.
    """
    strides = _strides(units)
    return [
        [(state - size * strides[kind], position) for position, (kind, size) in enumerate(teams) if size <= used[kind]]
        for state, used in enumerate(product(*(range(most + 1) for most in units)))
    ]


def unequal_partitions(
    problem: Problem,
    costs: CostModel,
    graph: Graph,
    sizes: Sequence[int] | None,
    ceiling: float,
    share_in_flight: float,
) -> Iterator[list[TypedPart]]:
    """Yield the best stages for every order of the operators, micro-batch size and least degree.

    Args:
        problem: graph, costs, cluster and batch.
        costs: the cost look-up of the problem.
        graph: the graph to cut, which may be a part of the problem's graph.
        sizes: micro-batch sizes to try; None tries all.
        ceiling: most seconds of the slowest stage for the mini-batch.
        share_in_flight: assumed share of the mini-batch in flight at every stage.
    """
    most = max(Counter(device.type for device in problem.cluster.devices).values())
    units = [unit for unit in range(1, most + 1) if problem.batch_size % unit == 0]
    held = round(share_in_flight * problem.batch_size)
    for order, size, unit in product(_orders(graph), sizes or micro_batch_sizes(problem.batch_size), units):
        if size % unit:
            continue
        intervals = Intervals.of(problem, costs, graph, order, size, unit, max(size, held))
        few = prod(count + 1 for count in intervals.units) <= MEDIUM
        if few and (parts := intervals.best(ceiling * size / problem.batch_size)):
            yield parts


def _orders(graph: Graph) -> list[tuple[str, ...]]:
    """Return the orders to cut: branch after branch, and all branches side by side."""
    level: dict[str, int] = {}
    for name in graph.order:
        level[name] = 1 + max((level[before] for before in graph.predecessors[name]), default=0)
    side_by_side = tuple(sorted(graph.order, key=lambda name: level[name]))
    return [graph.order] if side_by_side == graph.order else [graph.order, side_by_side]


def _sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate(([0.0], np.cumsum(values)))


def _cut_bytes(graph: Graph, order: Sequence[str]) -> NDArray[np.float64]:
    """Return the bytes per sample that cross before operator 0, 1, ... of an order; 0 after the last."""
    position = {name: at for at, name in enumerate(order)}
    count: dict[tuple[str, str], float] = {}
    last: dict[tuple[str, str], int] = {}
    for _, target, value, size in graph.reads:
        count[value] = max(count.get(value, 0.0), size)
        last[value] = max(last.get(value, 0), position[target])
    change = np.zeros(len(order) + 1)
    for value, reader in last.items():
        change[position[value[0]] + 1] += count[value]
        change[reader + 1] -= count[value]
    return np.maximum(np.cumsum(change), 0.0)
