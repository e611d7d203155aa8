"""The search over targets: for every setting the smallest time per sample that the partition programme can reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphpipe.graph.series_parallel import Series
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.search.coarsen import Coarsening, Runs
from graphpipe.planners.search.frontier import ClosedStage, Frontier
from graphpipe.planners.search.size_settings import SettingTable
from graphpipe.planners.search.tree_rewrites import cut_bytes, mirrored

Array = NDArray[np.float64]
_TARGETS = 8
_ROUNDS = 4
_RUNS_PER_UNIT = 8
"""Runs of operators that the work of one unit of devices is divided into, at least."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One form of the graph to cut: its tree, walked from the sources or, turned around, from the sinks."""

    tree: Series
    cuts: dict[int, tuple[float, ...]]
    reverse: bool
    runs: Runs = field(default_factory=dict[str, tuple[str, ...]])
    """Operators that stand for several, with all they stand for; empty: none does."""

    @staticmethod
    def of(problem: Problem, tree: Series, *, reverse: bool) -> "Shape":
        """Return the shape of a decomposed graph.

        Turned around, forks become joins: the stage of a fork then takes the heads of its branches, which walking
        forwards cannot see.
        """
        tree = mirrored(tree) if reverse else tree
        return Shape(tree, cut_bytes(tree, problem.graph, reverse=reverse), reverse)

    def for_units(self, table: SettingTable, shares: Mapping[str, float]) -> "Shape":
        """Return the shape with runs of light operators, as fine as the fewest devices of a stage ask for.

        Args:
            table: says how many units of devices there are.
            shares: of each operator in the work, as `settings.shares`.
        """
        coarsening = Coarsening(shares, 1 / (_RUNS_PER_UNIT * table.units), self.cuts, {}, {})
        tree = coarsening.series(self.tree)
        return Shape(tree, coarsening.merged_cuts, self.reverse, coarsening.runs)

    def frontier(self, table: SettingTable, targets: Array, in_flight: Array | None = None) -> Frontier:
        """Return the partition programme of the shape for targets of shape [settings, targets]."""
        return Frontier(self.tree, table.loads(targets, in_flight, self.runs), self.cuts, table.units)


def best_targets(
    table: SettingTable,
    shape: Shape,
    ceiling: float,
    in_flight: Array | None = None,
    *,
    least: Array | None = None,
    precision: float = 1.003,
) -> Array:
    """Return for every setting the smallest feasible seconds per sample; infinite if none.

    GraphPipe searches the target by bisection (section 5, Algorithm 1); here a few targets are tried at once for
    every setting, and the interval between the last that fails and the first that holds is divided again.

    Args:
        table: the settings and their loads.
        shape: the form of the graph.
        ceiling: targets above it are of no use.
        in_flight: assumed samples in flight of each operator's stage, [operators, settings]; None leaves memory out.
        least: bounds on the targets, known from less memory: seconds per sample of every setting.
        precision: at most this factor above the smallest.
    """
    low, high = _interval(table)
    low = low if least is None else np.maximum(low, least)
    high = np.minimum(high, ceiling)
    alive = low < high
    found = np.zeros(len(high), dtype=bool)
    for _ in range(_ROUNDS):
        chosen = np.flatnonzero(alive & (~found | (high > precision * low)))
        if not len(chosen):
            break
        targets = np.geomspace(low[chosen], high[chosen], _TARGETS + 1, axis=1)[:, 1:]
        assumed = None if in_flight is None else in_flight[:, chosen]
        feasible = shape.frontier(table.only(chosen), targets, assumed).feasible()
        first = feasible.argmax(axis=1)
        rows = np.arange(len(chosen))
        found[chosen] = feasible.any(axis=1)
        alive[chosen] = found[chosen]
        high[chosen] = targets[rows, first]
        low[chosen] = np.where(first > 0, targets[rows, np.maximum(first - 1, 0)], low[chosen])
    return np.where(alive, high, np.inf)


@dataclass(frozen=True, slots=True)
class Draws:
    """Partitions of one form of the graph, read out on demand."""

    frontier: Frontier
    table: SettingTable
    shape: Shape

    @staticmethod
    def of(table: SettingTable, shape: Shape, targets: Array, in_flight: Array | None = None) -> "Draws":
        """Walk once for targets of shape [settings, targets]; only feasible ones may be read."""
        return Draws(shape.frontier(table, targets, in_flight), table, shape)

    @property
    def targets(self) -> int:
        """How many targets each setting has."""
        return self.frontier.targets

    def parts(self, setting: int, target: int) -> list[Part]:
        """Return the partition for one of the settings and one of its targets (positions)."""
        stages = [
            ClosedStage(tuple(op for name in stage.ops for op in self.shape.runs.get(name, (name,))), stage.units)
            for stage in self.frontier.partition(setting, target)
        ]
        if self.shape.reverse:
            stages = [ClosedStage(stage.ops[::-1], stage.units) for stage in reversed(stages)]
        size = int(self.table.sizes[setting])
        how = self.table.problem.recompute
        return [Part(stage.ops, stage.units * self.table.unit, size, recompute=how) for stage in stages]


def _interval(table: SettingTable) -> tuple[Array, Array]:
    """Return bounds on the target of every setting: no device idle ever, and everything in one stage."""
    seconds = table.seconds.sum(axis=0)
    units = 2.0 ** np.arange(seconds.shape[1])
    low = (seconds * units).min(axis=1) / table.units / table.sizes
    high = seconds.min(axis=1) / table.sizes
    # A single stage leaves no cut, so it is feasible in time; the margin keeps rounding from excluding it.
    return np.minimum(low, high) * 0.999, high * 1.001
