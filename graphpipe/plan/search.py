"""The search that the graph planner and the chain planner share: shapes of the graph x settings x targets."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph.series_parallel import Leaf, Series, decompose
from graphpipe.plan.baseline import degrees_of
from graphpipe.plan.bounds import bottleneck_seconds, memory_shortfall
from graphpipe.plan.candidates import Candidates
from graphpipe.plan.downsets import Downsets
from graphpipe.plan.draft import Draft, Drafter
from graphpipe.plan.options import Options
from graphpipe.plan.partition import Part, Problem, assemble
from graphpipe.plan.plan import Plan
from graphpipe.plan.settings import SettingTable, micro_batch_sizes
from graphpipe.plan.stage_loads import Landscape, StageLoads
from graphpipe.plan.sweep import Draws, Shape, best_targets
from graphpipe.plan.tail import Tail
from graphpipe.plan.tree import bundled, width
from graphpipe.units import format_bytes

Array = NDArray[np.float64]
_RELAXED = (1.06, 1.2, 1.5)
"""Multiples of the best target at which partitions are drawn: a worse bottleneck can mean a shallower pipeline."""
_RELAXED_SETTINGS = 4
_SCHEDULED = 5
"""Finalists that are also tried under other schedules."""
_MEMORY_ROUNDS = 5
_FEW_DOWNSETS = 200
_INTERVALS = 4096
"""Operators times devices up to which the intervals of one order are searched exactly."""
_MEMORY_MARGIN = 1.02


@dataclass(frozen=True, slots=True)
class Search:
    """One planner's search over one problem."""

    problem: Problem
    drafter: Drafter
    tail: Tail
    planner: str
    found: Candidates

    def over(self, table: SettingTable, tree: Series, *, reverse: bool) -> None:
        """Draw partitions of one form of the graph under every setting of a table."""
        shape = Shape.of(self.problem, tree, reverse=reverse)
        targets = best_targets(table, shape, self.found.ceiling / self.problem.batch_size)
        reached = np.flatnonzero(np.isfinite(targets))
        if not len(reached):
            return
        # Most promising first, so that the rest can be left undrawn.
        order = reached[np.argsort(targets[reached], kind="stable")]
        missed: dict[int, Draft] = {}
        fitting: dict[int, float] = {}
        draws = Draws.of(table.only(order), shape, targets[order, None])
        for position, setting in enumerate(order):
            if self.found.hopeless(float(targets[setting]) * self.problem.batch_size):
                break
            draft = self._draft(draws.parts(position, 0))
            if self.found.offer(draft):
                fitting[int(setting)] = self.found.score(draft)
            else:
                missed[int(setting)] = draft
        self._relaxed(table, shape, targets, sorted(fitting, key=lambda at: fitting[at])[:_RELAXED_SETTINGS])
        self._within_memory(table, shape, missed)

    def _draft(self, parts: list[Part]) -> Draft:
        return self.drafter.draft([*parts, self.tail.part(self.problem)] if self.tail.ops else parts)

    def _relaxed(self, table: SettingTable, shape: Shape, targets: Array, settings: list[int]) -> None:
        """Draw partitions with a relaxed bottleneck: they may have fewer stages, and fill and drain faster."""
        if self.found.objective == "bottleneck":
            return
        best = np.array(settings, dtype=np.intp)
        wider = targets[best, None] * np.array(_RELAXED)
        draws = Draws.of(table.only(best), shape, wider)
        for position, target in np.ndindex(*wider.shape):
            if not self.found.hopeless(float(wider[position, target]) * self.problem.batch_size):
                self.found.offer(self._draft(draws.parts(position, target)))

    def _within_memory(self, table: SettingTable, shape: Shape, missed: dict[int, Draft]) -> None:
        """Search again, with memory, the settings whose partitions did not fit.

        How many samples a stage keeps in flight depends on the stages after it, which the walk from the sources has
        not met yet. So they are assumed for each operator, checked on the plan, and raised where the plan shows more.
        The published recursion solves the later subgraph first, at the price of one table per in-flight count.
        """
        in_flight = np.zeros((len(self.problem.graph.ops), len(table.sizes)))
        for _ in range(_MEMORY_ROUNDS):
            for setting, draft in missed.items():
                for part, held in zip(draft.parts, draft.in_flight, strict=True):
                    at = (self.drafter.costs.positions(part.ops), setting)
                    in_flight[at] = np.maximum(in_flight[at] * _MEMORY_MARGIN, held)
            again = np.array(sorted(missed), dtype=np.intp)
            ceiling = self.found.ceiling / self.problem.batch_size
            targets = best_targets(table.only(again), shape, ceiling, in_flight[:, again])
            reached = np.isfinite(targets)
            again, targets = again[reached], targets[reached]
            if not len(again):
                return
            draws = Draws.of(table.only(again), shape, targets[:, None], in_flight[:, again])
            drafts = {int(setting): self._draft(draws.parts(at, 0)) for at, setting in enumerate(again)}
            missed = {setting: draft for setting, draft in drafts.items() if not self.found.offer(draft)}
            if not missed:
                return

    def exhaust(self, sizes: list[int]) -> None:
        """Draw the best of all partitions of a small graph, also those that no form of its tree contains.

        Of a larger one, the best of all its intervals in order, for the micro-batch sizes of the best drafts: what the
        chain planners among the baselines find.
        """
        assert self.tail.before is not None
        graph, devices = self.tail.before, len(self.problem.cluster.devices)
        try:
            downsets = Downsets.of(graph, _FEW_DOWNSETS)
        except Infeasible:
            if len(graph.ops) * devices > _INTERVALS:
                return
            downsets = Downsets.chain(graph)
            sizes = sorted({part.micro_batch for draft in self.found.drafts for part in draft.parts} & {*sizes})
        land = Landscape.of(self.problem, self.drafter.costs, graph, downsets)
        for size in sizes:
            loads = StageLoads(land, size, degrees_of(self.problem, size))
            parts = land.parts(loads.ladder(self.found.ceiling / self.problem.batch_size).solve(), size)
            if parts:
                self.found.offer(self._draft(parts))

    def finalists(self) -> list[Plan]:
        """Return the plans of the best drafts: one each, or one per way to give the whole-batch tail a device.

        Raises:
            Infeasible: nothing fits in memory; the nearest miss is named.
        """
        drawn = [plan for draft in self.found.drafts for plan in self._plans(draft)]
        # Drafts that fit exactly may miss by a rounded byte here.
        plans = [plan for plan in drawn if memory_shortfall(plan) <= 1.0]
        if not plans:
            for plan in drawn:
                # Each stage fits a device, but not the whole-batch tail and its host together.
                self.found.note(memory_shortfall(plan), f"the device that operator '{self.tail.ops[0]}' shares")
            raise Infeasible(
                f"no partition of '{self.problem.graph.name}' over {len(self.problem.cluster.devices)} devices fits "
                f"in memory: the nearest misses by {format_bytes(self.found.shortfall)} "
                f"({self.found.shortfall:.0f} bytes) at {self.found.missing}",
                remedy="Use more devices, devices with more memory, a smaller batch, or split the largest submodule.",
            )
        return plans

    def _plans(self, draft: Draft) -> list[Plan]:
        chain = self.drafter.chain
        if not self.tail.ops:
            return [assemble(self.problem, draft.parts, planner=self.planner, chain=chain)]
        last = len(draft.parts) - 1
        ways: list[dict[int, int]] = [{last: host} for host in self.tail.hosts(self.problem, draft.parts[:-1])]
        if sum(part.degree for part in draft.parts) <= len(self.problem.cluster.devices):
            ways.append({})
        return [assemble(self.problem, draft.parts, planner=self.planner, chain=chain, hosts=way) for way in ways]


def search(problem: Problem, options: Options, *, planner: str, chain: bool) -> Plan:
    """Return the plan of a search that is best by the caller's measure.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        chain: linearise the graph, and run its stages as a sequential pipeline.

    Raises:
        Infeasible: nothing fits in memory.
    """
    if options.objective == "bottleneck" and options.micro_batch is None:
        return _best_of_sizes(problem, options, planner, chain)
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    run = Search(
        problem, Drafter(problem, costs, chain), Tail.of(problem.graph), planner, Candidates(options.objective)
    )
    if run.tail.before is None:
        run.found.offer(run.drafter.draft([run.tail.part(problem)]))
    else:
        _sweep(run, costs, decompose(run.tail.before), options)
    finalists = run.finalists()
    if options.objective == "bottleneck":
        return min(finalists, key=bottleneck_seconds)
    others = (other for plan in finalists[:_SCHEDULED] for other in options.variants(plan) if other is not plan)
    return options.best([*finalists, *others])


def _best_of_sizes(problem: Problem, options: Options, planner: str, chain: bool) -> Plan:
    """Search every micro-batch size for its best bottleneck, as the published planner does, and compare the steps."""
    found: list[Plan] = []
    misses: list[Infeasible] = []
    for size in micro_batch_sizes(problem.batch_size):
        try:
            found.append(search(problem, replace(options, micro_batch=size), planner=planner, chain=chain))
        except Infeasible as miss:
            misses.append(miss)
    if not found:
        raise misses[0]
    return options.best(found)


def _sweep(run: Search, costs: CostModel, tree: Series, options: Options) -> None:
    """Search every form of the graph; narrow forms and large units first.

    They are cheap to walk, and what they reach bounds the rest of the search.
    """
    problem, widest = run.problem, width(tree)
    sizes = [options.micro_batch] if options.micro_batch else micro_batch_sizes(problem.batch_size)
    widths = [1] if run.drafter.chain else sorted({1, *(2**k for k in range(1, 20) if 2**k < widest), widest})
    units = [2**k for k in reversed(range(len(problem.cluster.devices).bit_length()))]
    tables = [SettingTable.of(problem, costs, unit, sizes, frozenset(tree.ops)) for unit in units]
    assert run.tail.before is not None
    in_order = Series(tuple(Leaf(name) for name in run.tail.before.order))
    forms = [(in_order, False)] + [(bundled(tree, groups), False) for groups in widths]
    if widths[-1] > 1:
        forms.append((tree, True))
    for form, reverse in forms:
        for table in tables:
            run.over(table, form, reverse=reverse)
    if not run.drafter.chain:
        run.exhaust(sizes)
