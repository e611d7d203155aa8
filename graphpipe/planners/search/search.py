"""The search that the graph planner and the chain planner share: shapes of the graph x settings x targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.graph.series_parallel import Leaf, Series, decompose
from graphpipe.planners.baselines.baseline import degrees_of
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import Landscape, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.whole_batch_tail import Tail
from graphpipe.planners.search.candidates import Candidates
from graphpipe.planners.search.partition_estimate import Draft, Drafter
from graphpipe.planners.search.size_settings import SettingTable, micro_batch_sizes, shares
from graphpipe.planners.search.target_search import Draws, Shape, best_targets
from graphpipe.planners.search.tree_rewrites import bundled, width
from graphpipe.plans.estimates import bottleneck_seconds, memory_shortfall
from graphpipe.plans.plan import Plan
from graphpipe.units import format_bytes

Array = NDArray[np.float64]
_RELAXED = (1.06, 1.2, 1.5)
"""Multiples of the best target at which partitions are drawn: a worse bottleneck can mean a shallower pipeline."""
_RELAXED_SETTINGS = 4
_MEMORY_ROUNDS = 5
_SMALL_WALK = 2048
"""Settings times units of devices up to which a walk takes as long for few targets as for many."""
_FEW_DOWNSETS = 200
_INTERVALS = 4096
"""Operators times devices up to which the intervals of one order are searched exactly."""
_MEMORY_MARGIN = 1.02
_PRECISION = {"step": 1.01, "bottleneck": 1.003}
"""Of targets, by objective. The step time of a partition depends on more than its target."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Who drafts partitions for one kind of pipeline, and keeps the best."""

    drafter: Drafter
    found: Candidates
    split: Candidates | None = None
    """The best where the schedule may split the backward: more stages fill and drain faster then."""
    seen: dict[tuple[Part, ...], tuple[Draft, bool]] = field(default_factory=dict[tuple[Part, ...], tuple[Draft, bool]])
    """Drafts already judged, and whether they fit in memory: several forms and targets lead to one partition."""

    def offer(self, parts: Sequence[Part]) -> tuple[Draft, bool]:
        """Judge a partition; return its draft and whether it fits in memory."""
        key = tuple(parts)
        if key not in self.seen:
            draft = self.drafter.draft(key)
            self.seen[key] = draft, self.found.offer(draft)
            if self.split is not None:
                self.split.offer(draft)
        return self.seen[key]

    @property
    def drafts(self) -> list[Draft]:
        """The best, each once."""
        others = self.split.drafts if self.split is not None else []
        return [*self.found.drafts, *(draft for draft in others if draft not in self.found.drafts)]


@dataclass(frozen=True, slots=True)
class Search:
    """One planner's search over one problem, for one or more kinds of pipeline at once."""

    problem: Problem
    costs: CostModel
    tail: Tail
    planner: str
    judges: tuple[Judge, ...]

    def over(self, table: SettingTable, shape: Shape) -> None:
        """Draw partitions of one form of the graph under every setting of a table.

        Partitions of a chain are judged as a graph of stages and as a sequential pipeline, others as a graph.
        """
        chain = all(isinstance(part, Leaf) for part in shape.tree.parts)
        judges = [judge for judge in self.judges if chain or not judge.drafter.chain]
        precision = _PRECISION[judges[0].found.objective]
        targets = best_targets(table, shape, self._ceiling(judges), precision=precision)
        reached = np.flatnonzero(np.isfinite(targets))
        if not len(reached):
            return
        # Most promising first, so that the rest can be left undrawn.
        order = reached[np.argsort(targets[reached], kind="stable")]
        missed: list[dict[int, Draft]] = [{} for _ in judges]
        fitting: list[dict[int, float]] = [{} for _ in judges]
        wider = np.array([1.0, *(() if judges[0].found.objective == "bottleneck" else _RELAXED)])
        # One walk for all where it takes as long for few targets as for many.
        together = len(order) * table.units <= _SMALL_WALK
        draws = Draws.of(table.only(order), shape, targets[order, None] * (wider if together else 1.0))
        for position, setting in enumerate(order):
            if targets[setting] > self._ceiling(judges):
                break
            parts = self._parts(draws, position, 0)
            for at, judge in enumerate(judges):
                draft, fits = judge.offer(parts)
                if fits:
                    fitting[at][position] = judge.found.score(draft)
                else:
                    missed[at][int(setting)] = draft
        best = {each for scores in fitting for each in sorted(scores, key=lambda at: scores[at])[:_RELAXED_SETTINGS]}
        if best and len(wider) > 1:
            positions = np.array(sorted(best, key=lambda at: order[at]), dtype=np.intp)
            chosen = order[positions]
            if not together:
                draws, positions = Draws.of(table.only(chosen), shape, targets[chosen, None] * wider), range(len(best))
            self._relaxed(draws, zip(positions, targets[chosen], strict=True), judges)
        for judge, misses in zip(judges, missed, strict=True):
            self._within_memory(table, shape, misses, judge, targets / precision)

    def _ceiling(self, judges: Sequence[Judge]) -> float:
        """Seconds per sample from which on no plan can become a finalist."""
        return max(judge.found.ceiling for judge in judges) / self.problem.batch_size

    def _parts(self, draws: Draws, setting: int, target: int) -> list[Part]:
        return [*draws.parts(setting, target), *([self.tail.part(self.problem)] if self.tail.ops else [])]

    def _relaxed(self, draws: Draws, least: Iterable[tuple[int, float]], judges: Sequence[Judge]) -> None:
        """Draw partitions with a relaxed bottleneck: they may have fewer stages, and fill and drain faster.

        `least`: positions of settings in the draws, and the target that is relaxed.
        """
        for setting, target in least:
            close = max(judge.found.close for judge in judges) / self.problem.batch_size
            for position in range(1, draws.targets):
                # A partition drawn for a relaxed target may be better than that.
                if target * _RELAXED[position - 1] <= close:
                    parts = self._parts(draws, setting, position)
                    for judge in judges:
                        judge.offer(parts)

    def _within_memory(
        self, table: SettingTable, shape: Shape, missed: dict[int, Draft], judge: Judge, least: Array
    ) -> None:
        """Search again, with memory, the settings whose partitions did not fit: all targets are at least `least`.

        How many samples a stage keeps in flight depends on the stages after it, which the walk from the sources has
        not met yet. So they are assumed for each operator, checked on the plan, and raised where the plan shows more.
        The published recursion solves the later subgraph first, at the price of one table per in-flight count.
        """
        in_flight = np.zeros((len(self.problem.graph.ops), len(table.sizes)))
        for _ in range(_MEMORY_ROUNDS if missed else 0):
            for setting, draft in missed.items():
                for part, held in zip(draft.parts, draft.in_flight, strict=True):
                    at = (self.costs.positions(part.ops), setting)
                    in_flight[at] = np.maximum(in_flight[at] * _MEMORY_MARGIN, held)
            again = np.array(sorted(missed), dtype=np.intp)
            targets = best_targets(
                table.only(again),
                shape,
                self._ceiling([judge]),
                in_flight[:, again],
                least=least[again],
                precision=_PRECISION[judge.found.objective],
            )
            reached = np.isfinite(targets)
            again, targets = again[reached], targets[reached]
            if not len(again):
                return
            draws = Draws.of(table.only(again), shape, targets[:, None], in_flight[:, again])
            judged = {int(setting): judge.offer(self._parts(draws, at, 0)) for at, setting in enumerate(again)}
            missed = {setting: draft for setting, (draft, fits) in judged.items() if not fits}
            if not missed:
                return

    def exhaust(self, sizes: list[int]) -> None:
        """Draw the best of all partitions of a small graph, also those that no form of its tree contains.

        Of a larger one, the best of all its intervals in order, for the micro-batch sizes of the best drafts: what the
        chain planners among the baselines find.
        """
        assert self.tail.before is not None
        judge = self.judges[0]
        graph, devices = self.tail.before, len(self.problem.cluster.devices)
        try:
            downsets = Downsets.of(graph, _FEW_DOWNSETS)
        except Infeasible:
            if len(graph.ops) * devices > _INTERVALS:
                return
            downsets = Downsets.chain(graph)
            sizes = sorted({part.micro_batch for draft in judge.found.drafts for part in draft.parts} & {*sizes})
        land = Landscape.of(self.problem, self.costs, graph, downsets)
        for size in sizes:
            loads = StageLoads(land, size, degrees_of(self.problem, size))
            parts = land.parts(loads.ladder(self._ceiling([judge])).solve(), size)
            if parts:
                judge.offer([*parts, self.tail.part(self.problem)] if self.tail.ops else parts)

    def finalists(self) -> list[list[Plan]]:
        """Return the plans of every judge's best drafts: one each, or one per way to give the tail a device.

        Raises:
            Infeasible: nothing fits in memory; the nearest miss is named.
        """
        found = [[plan for draft in judge.drafts for plan in self._plans(judge, draft)] for judge in self.judges]
        if not any(found):
            even = ", even if every stage recomputes" if self.problem.recompute == "full" else ""
            miss = min((judge.found for judge in self.judges), key=lambda each: each.shortfall)
            raise Infeasible(
                f"no partition of '{self.problem.graph.name}' over {len(self.problem.cluster.devices)} devices fits "
                f"in memory{even}: the nearest misses by {format_bytes(miss.shortfall)} "
                f"({miss.shortfall:.0f} bytes) at {miss.missing}",
                remedy="Use more devices, devices with more memory, a smaller batch, or split the largest submodule.",
            )
        return found

    def _plans(self, judge: Judge, draft: Draft) -> list[Plan]:
        drawn = self._assembled(draft, judge.drafter.chain)
        # Drafts that fit exactly may miss by a rounded byte here.
        fitting = [plan for plan in drawn if memory_shortfall(plan) <= 1.0]
        for plan in [] if fitting else drawn:
            # Each stage fits a device, but not the whole-batch tail and its host together.
            judge.found.note(memory_shortfall(plan), f"the device that operator '{self.tail.ops[0]}' shares")
        return fitting

    def _assembled(self, draft: Draft, chain: bool) -> list[Plan]:
        if not self.tail.ops:
            return [assemble(self.problem, draft.parts, planner=self.planner, chain=chain)]
        last = len(draft.parts) - 1
        ways: list[dict[int, int]] = [{last: host} for host in self.tail.hosts(self.problem, draft.parts[:-1])]
        if sum(part.degree for part in draft.parts) <= len(self.problem.cluster.devices):
            ways.append({})
        return [assemble(self.problem, draft.parts, planner=self.planner, chain=chain, hosts=way) for way in ways]


def search(problem: Problem, options: Options, *, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Return the plan of a search that is best by the caller's measure.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        chains: kinds of pipeline to look for: False a graph of stages; True a sequential one, over the linearised
            graph. Both share the search, so that the second costs little.

    Raises:
        Infeasible: nothing fits in memory.
    """
    if options.objective == "bottleneck" and options.micro_batch is None:
        return _best_of_sizes(problem, options, planner, chains)
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    split = options.objective == "step" and options.scheduled is not None
    judges = tuple(
        Judge(Drafter(problem, costs, chain), Candidates(options.objective), Candidates("split") if split else None)
        for chain in chains
    )
    run = Search(problem, costs, Tail.of(problem.graph), planner, judges)
    if run.tail.before is None:
        for judge in judges:
            judge.offer([run.tail.part(problem)])
    else:
        _sweep(run, decompose(run.tail.before), options)
    kinds = run.finalists()
    finalists = _distinct(plan for kind in kinds for plan in kind)
    if options.objective == "bottleneck":
        return min(finalists, key=bottleneck_seconds)
    return options.scheduled(finalists) if options.scheduled is not None else options.best(finalists)


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    # Stages that form a chain by themselves are found as a graph of stages and as a sequential pipeline.
    found: dict[object, Plan] = {}
    for plan in plans:
        found.setdefault((plan.stages, plan.edges), plan)
    return list(found.values())


def _best_of_sizes(problem: Problem, options: Options, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Search every micro-batch size for its best bottleneck, as the published planner does, and compare the steps."""
    found: list[Plan] = []
    misses: list[Infeasible] = []
    for size in micro_batch_sizes(problem.batch_size):
        try:
            found.append(search(problem, replace(options, micro_batch=size), planner=planner, chains=chains))
        except Infeasible as miss:
            misses.append(miss)
    if not found:
        raise misses[0]
    return options.best(found)


def _sweep(run: Search, tree: Series, options: Options) -> None:
    """Search every form of the graph; narrow forms and large units first.

    They are cheap to walk, and what they reach bounds the rest of the search.
    """
    problem = run.problem
    sizes = [options.micro_batch] if options.micro_batch else micro_batch_sizes(problem.batch_size)
    units = [2**k for k in reversed(range(len(problem.cluster.devices).bit_length()))]
    tables = [SettingTable.of(problem, run.costs, unit, sizes, frozenset(tree.ops)) for unit in units]
    weights = shares(problem, run.costs)
    graphs = any(not judge.drafter.chain for judge in run.judges)
    assert run.tail.before is not None
    for form, reverse in _forms(run.tail.before, tree, graphs):
        shape = Shape.of(problem, form, reverse=reverse)
        for table in tables:
            run.over(table, shape.for_units(table, weights))
    if graphs:
        run.exhaust(sizes)


def _forms(graph: Graph, tree: Series, graphs: bool) -> list[tuple[Series, bool]]:
    """Return the forms to cut: chains, then (for graphs of stages) ever wider ones, the widest turned around too."""
    in_order = Series(tuple(Leaf(name) for name in graph.order))
    bundle = bundled(tree, 1)
    forms = [(in_order, False), *([(bundle, False)] if bundle.ops != in_order.ops else [])]
    widest = width(tree)
    if graphs and widest > 1:
        widths = [*(2**k for k in range(1, widest.bit_length()) if 2**k < widest), widest]
        forms += [(bundled(tree, groups), False) for groups in widths]
        forms.append((tree, True))
    return forms
