"""The search over targets: the smallest feasible time per sample for every setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphpipe.graph.series_parallel import Series
from graphpipe.planners.problem.limits import FEW, PASSES, RUNS_PER_UNIT
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.search.backtrack import ClosedStage
from graphpipe.planners.search.coarsen import Coarsening, MergedOps
from graphpipe.planners.search.dynamic_program import DynamicProgram
from graphpipe.planners.search.relative_loads import RelativeLoads
from graphpipe.planners.search.setting_table import SettingTable
from graphpipe.planners.search.tree_rewrites import cut_bytes, mirrored

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GraphForm:
    """One form of the graph to cut: its tree, walked from the sources or, reversed, from the sinks."""

    tree: Series
    cuts: dict[int, tuple[float, ...]]
    reverse: bool
    runs: MergedOps = field(default_factory=dict[str, tuple[str, ...]])
    """Operators that represent several, with all that they represent."""

    @staticmethod
    def of(problem: Problem, tree: Series, *, reverse: bool) -> "GraphForm":
        """Return the form of a decomposed graph.

        Reversed, forks become joins. The stage of a fork can then take the heads of its branches, which a forward walk
        cannot find.
        """
        tree = mirrored(tree) if reverse else tree
        return GraphForm(tree, cut_bytes(tree, problem.graph, reverse=reverse), reverse)

    def for_units(self, table: SettingTable, shares: Mapping[str, float]) -> "GraphForm":
        """Return the form with runs of light operators merged, finer if the cluster has more units.

        Args:
            table: holds the number of units of devices.
            shares: of each operator in the work, see `setting_table.shares`.
        """
        coarsening = Coarsening(shares, 1 / (RUNS_PER_UNIT * table.units), self.cuts, {}, {})
        tree = coarsening.series(self.tree)
        return GraphForm(tree, coarsening.merged_cuts, self.reverse, coarsening.runs)

    def dynamic_program(self, loads: RelativeLoads, units: int) -> DynamicProgram:
        """Return the dynamic program of the form for the loads of its runs, on so many units of devices."""
        return DynamicProgram(self.tree, loads, self.cuts, units)


def best_targets(
    table: SettingTable,
    form: GraphForm,
    ceiling: float,
    in_flight: Array | None = None,
    *,
    least: Array | None = None,
    precision: float = 1.003,
) -> Array:
    """Return the smallest feasible seconds per sample of every setting; infinite if nothing is feasible.

    GraphPipe searches the target by bisection (section 5, Algorithm 1). This search tries a few targets at once for
    every setting, and continues between the largest infeasible and the smallest feasible one.

    Args:
        table: the settings and their loads.
        form: the form of the graph.
        ceiling: largest target to try.
        in_flight: assumed samples in flight of each operator's stage, [operators, settings]; None ignores memory.
        least: lower bounds on the targets, from a search with less memory: seconds per sample of every setting.
        precision: the result is at most this factor above the smallest feasible target.
    """
    low, high = _interval(table)
    low = low if least is None else np.maximum(low, least)
    high = np.minimum(high, ceiling)
    alive = low < high
    loads = table.loads(high[:, None], in_flight, form.runs)
    if in_flight is not None:
        alive &= loads.may_fit(form.tree.ops, table.units)
    reached = np.zeros(len(high), dtype=bool)
    for _ in range(PASSES):
        chosen = np.flatnonzero(alive & (~reached | (high > precision * low)))
        if not len(chosen):
            break
        targets = np.geomspace(low[chosen], high[chosen], FEW + 1, axis=1)[:, 1:]
        within = loads.only(chosen, targets * table.sizes[chosen, None])
        feasible = form.dynamic_program(within, table.units).feasible()
        first = feasible.argmax(axis=1)
        rows = np.arange(len(chosen))
        reached[chosen] = feasible.any(axis=1)
        alive[chosen] = reached[chosen]
        high[chosen] = targets[rows, first]
        low[chosen] = np.where(first > 0, targets[rows, np.maximum(first - 1, 0)], low[chosen])
    return np.where(alive, high, np.inf)


@dataclass(frozen=True, slots=True)
class TargetPartitions:
    """Partitions of one form of the graph, recovered on demand."""

    program: DynamicProgram
    table: SettingTable
    form: GraphForm

    @staticmethod
    def of(table: SettingTable, form: GraphForm, targets: Array, in_flight: Array | None = None) -> "TargetPartitions":
        """Walk once for targets of shape [settings, targets]; call `parts` only for feasible ones."""
        loads = table.loads(targets, in_flight, form.runs)
        return TargetPartitions(form.dynamic_program(loads, table.units), table, form)

    @property
    def targets(self) -> int:
        """Number of targets of each setting."""
        return self.program.targets

    def parts(self, setting: int, target: int) -> list[Part]:
        """Return the partition for one of the settings and one of its targets (positions)."""
        stages = [
            ClosedStage(tuple(op for name in stage.ops for op in self.form.runs.get(name, (name,))), stage.units)
            for stage in self.program.partition(setting, target)
        ]
        if self.form.reverse:
            stages = [ClosedStage(stage.ops[::-1], stage.units) for stage in reversed(stages)]
        size = int(self.table.sizes[setting])
        recompute, state = self.table.problem.recompute, self.table.problem.state
        return [
            Part(stage.ops, stage.units * self.table.unit, size, recompute=recompute, state=state) for stage in stages
        ]


def _interval(table: SettingTable) -> tuple[Array, Array]:
    """Return bounds on the target of every setting: all devices always busy, and everything in one stage."""
    seconds = table.seconds.sum(axis=0)
    units = np.array(table.degrees) / table.unit
    low = (seconds * units).min(axis=1) / table.units / table.sizes
    high = seconds.min(axis=1) / table.sizes
    # A single stage has no cuts, so it is within the time. The margin keeps rounding from excluding it.
    return np.minimum(low, high) * 0.999, high * 1.001
