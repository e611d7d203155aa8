"""The search that the graph planner and the chain planner share: shapes of the graph x settings x targets."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph.series_parallel import Series, decompose
from graphpipe.plan.bounds import estimated_step_seconds, memory_shortfall
from graphpipe.plan.options import Options
from graphpipe.plan.partition import Part, Problem, assemble
from graphpipe.plan.plan import Plan
from graphpipe.plan.settings import SettingTable, settings_of
from graphpipe.plan.sweep import Draws, Shape, best_targets
from graphpipe.plan.tail import Tail
from graphpipe.plan.tree import bundled, width
from graphpipe.units import format_bytes

Array = NDArray[np.float64]
_RELAXED = (1.0, 1.06, 1.2, 1.5)
"""Multiples of the best target at which partitions are drawn: a worse bottleneck can mean a shallower pipeline."""
_FINALISTS = 8
_CLOSE = 1.15
"""Candidates within this factor of the best estimate are worth keeping."""
_MEMORY_ROUNDS = 5
_MEMORY_MARGIN = 1.02


@dataclass(slots=True)
class Candidates:
    """The best plans so far, by closed-form step time, and the nearest miss where none fits in memory."""

    plans: list[tuple[float, Plan]] = field(default_factory=list[tuple[float, Plan]])
    shortest: float = np.inf
    missing: str = ""

    @property
    def ceiling(self) -> float:
        """Seconds of a step from which on a plan cannot become a finalist."""
        return _CLOSE * self.plans[0][0] if self.plans else np.inf

    def hopeless(self, step_seconds: float) -> bool:
        """Return whether no plan that takes at least this long can become a finalist."""
        return step_seconds > self.ceiling

    def offer(self, plan: Plan) -> float:
        """Take a plan that fits in memory, unless it is too slow or known; return its estimate in seconds."""
        estimate = estimated_step_seconds(plan)
        if not self.hopeless(estimate) and all(plan.stages != known.stages for _, known in self.plans):
            self.plans = sorted([*self.plans, (estimate, plan)], key=lambda pair: pair[0])[:_FINALISTS]
        return estimate

    def miss(self, plan: Plan, shortfall: float, stage: str) -> None:
        """Note a plan that does not fit."""
        if shortfall < self.shortest:
            self.shortest = shortfall
            ops = next(here.ops for here in plan.stages if here.name == stage)
            names = ", ".join(ops[:3]) + (f", ... ({len(ops)} operators)" if len(ops) > 3 else "")
            self.missing = f"stage '{stage}' ({names})"


@dataclass(frozen=True, slots=True)
class Search:
    """One planner's search over one problem."""

    problem: Problem
    costs: CostModel
    tail: Tail
    planner: str
    chain: bool
    """Run the stages as a sequential pipeline."""
    found: Candidates = field(default_factory=Candidates)

    def over(self, table: SettingTable, tree: Series, *, reverse: bool) -> None:
        """Draw partitions of one form of the graph under every setting, the most promising first."""
        shape = Shape.of(self.problem, tree, reverse=reverse)
        targets = best_targets(self.problem, table, shape, self.found.ceiling / self.problem.batch_size)
        chosen = np.flatnonzero(np.isfinite(targets))
        if not len(chosen):
            return
        drawn = targets[chosen, None] * np.array(_RELAXED)
        draws = Draws.of(self.problem, table, shape, chosen, drawn, None)
        missed: dict[int, list[Part]] = {}
        estimates: dict[int, float] = {}
        for at in np.argsort(drawn[:, 0], kind="stable"):
            if self.found.hopeless(float(drawn[at, 0]) * self.problem.batch_size):
                break
            parts = draws.parts(int(at), 0)
            estimates[int(at)] = self.offer(parts)
            if not np.isfinite(estimates[int(at)]):
                missed[int(chosen[at])] = parts
        for at in sorted(estimates, key=lambda at: estimates[at])[:_FINALISTS]:
            for relaxed in range(1, len(_RELAXED)):
                if not self.found.hopeless(float(drawn[at, relaxed]) * self.problem.batch_size):
                    self.offer(draws.parts(at, relaxed))
        self._within_memory(table, shape, missed)

    def offer(self, parts: list[Part]) -> float:
        """Offer the plans of a partition; return the best estimate in seconds, infinite when none fits in memory."""
        best = np.inf
        for plan in self._plans(parts):
            shortfall, stage = memory_shortfall(plan)
            if shortfall > 0:
                self.found.miss(plan, shortfall, stage)
            else:
                best = min(best, self.found.offer(plan))
        return best

    def _plans(self, parts: list[Part]) -> list[Plan]:
        """Return the plans of a partition: one, or one per way to give the whole-batch tail a device."""
        if not self.tail.ops:
            return [assemble(self.problem, parts, planner=self.planner, chain=self.chain)]
        ways: list[dict[int, int]] = [{len(parts): host} for host in self.tail.hosts(self.problem, parts)]
        if sum(part.degree for part in parts) < len(self.problem.cluster.devices):
            ways.append({})
        with_tail = [*parts, self.tail.part(self.problem)]
        return [
            assemble(self.problem, with_tail, planner=self.planner, chain=self.chain, hosts=hosts) for hosts in ways
        ]

    def _within_memory(self, table: SettingTable, shape: Shape, missed: dict[int, list[Part]]) -> None:
        """Search again, with memory, the settings whose partitions did not fit.

        How many samples a stage keeps in flight depends on the stages after it, which the walk from the sources has
        not met yet. So they are assumed for each operator, checked on the plan, and raised where the plan shows more.
        The published recursion solves the later subgraph first, at the price of one table per in-flight count.
        """
        in_flight = np.zeros((len(self.problem.graph.ops), len(table.settings)))
        for _ in range(_MEMORY_ROUNDS):
            for setting, parts in missed.items():
                for stage in self._plans(parts)[0].stages:
                    at = (self.costs.positions(stage.ops), setting)
                    in_flight[at] = np.maximum(in_flight[at] * _MEMORY_MARGIN, stage.in_flight)
            again = np.array(sorted(missed), dtype=np.intp)
            ceiling = self.found.ceiling / self.problem.batch_size
            targets = best_targets(self.problem, table.only(again), shape, ceiling, in_flight[:, again])
            reached = np.isfinite(targets)
            again, targets = again[reached], targets[reached]
            if not len(again):
                return
            draws = Draws.of(self.problem, table, shape, again, targets[:, None], in_flight[:, again])
            partitions = {int(setting): draws.parts(position, 0) for position, setting in enumerate(again)}
            missed = {setting: parts for setting, parts in partitions.items() if not np.isfinite(self.offer(parts))}
            if not missed:
                return

    def winner(self, options: Options) -> Plan:
        """Return the finalist that takes least time by the caller's measure.

        Raises:
            Infeasible: nothing fits in memory; the nearest miss is named.
        """
        if not self.found.plans:
            raise Infeasible(
                f"no partition of '{self.problem.graph.name}' over {len(self.problem.cluster.devices)} devices fits "
                f"in memory: the nearest misses by {format_bytes(self.found.shortest)} "
                f"({self.found.shortest:.0f} bytes) at {self.found.missing}",
                remedy="Use more devices, devices with more memory, a smaller batch, or split the largest submodule.",
            )
        return min((plan for _, plan in self.found.plans), key=options.evaluate)


def search(problem: Problem, options: Options, *, planner: str, chain: bool) -> list[Plan]:
    """Return the finalists of a search, the best by the caller's measure first.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plans.
        chain: linearise the graph, and run its stages as a sequential pipeline.

    Raises:
        Infeasible: nothing fits in memory.
    """
    tail = Tail.of(problem.graph)
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    run = Search(problem, costs, tail, planner, chain)
    if tail.before is None:
        run.offer([])
        return [run.winner(options)]
    tree = decompose(tail.before)
    settings = settings_of(problem.batch_size, len(problem.cluster.devices), options.micro_batch)
    table = SettingTable.of(problem, costs, settings, frozenset(tree.ops))
    widest = width(tree)
    # Narrow forms first: they are cheap to walk, and what they reach bounds the search of the wide ones.
    widths = [1] if chain else sorted({1, *(2**k for k in range(1, 20) if 2**k < widest), widest})
    for groups in widths:
        narrowed = bundled(tree, groups)
        for reverse in (False, True) if groups == widest > 1 else (False,):
            run.over(table, narrowed, reverse=reverse)
    best = run.winner(options)
    return [best, *(plan for _, plan in run.found.plans if plan is not best)]
