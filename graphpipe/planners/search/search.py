"""The search of the graph planner and the chain planner: forms of the graph x settings x targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.graph.series_parallel import Leaf, Series, decompose
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.stage_costs import degrees_of, micro_batch_sizes
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.planners.search.candidates import Candidates
from graphpipe.planners.search.partition_estimate import PartitionEstimate, PartitionEstimator
from graphpipe.planners.search.size_settings import SettingTable, shares
from graphpipe.planners.search.target_search import GraphForm, TargetPartitions, best_targets
from graphpipe.planners.search.tree_rewrites import bundled, width
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import bottleneck_seconds
from graphpipe.plans.plan import Plan
from graphpipe.units import format_bytes

Array = NDArray[np.float64]
_RELAXED = (1.06, 1.2, 1.5)
"""Multiples of the best target to try, because a slower bottleneck can allow a shallower pipeline."""
_RELAXED_SETTINGS = 4
_MEMORY_ROUNDS = 5
_SMALL_WALK = 2048
"""Settings times units of devices up to which one walk over many targets takes as long as over few."""
_FEW_DOWNSETS = 200
_INTERVALS = 4096
"""Operators times devices up to which the intervals of one order are searched exactly."""
_MEMORY_MARGIN = 1.02
_PRECISION = {"step": 1.01, "bottleneck": 1.003}
"""Of targets, by objective; lower for `step`, because the step time depends on more than the target."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Estimates partitions for one kind of pipeline, and keeps the best."""

    estimator: PartitionEstimator
    found: Candidates
    split: Candidates | None = None
    """The best if the schedule may split the backward, which makes more stages fill and drain faster."""
    seen: dict[tuple[Part, ...], tuple[PartitionEstimate, bool]] = field(
        default_factory=dict[tuple[Part, ...], tuple[PartitionEstimate, bool]]
    )
    """Partitions already estimated, and whether they fit in memory; several forms and targets give the same one."""

    def offer(self, parts: Sequence[Part]) -> tuple[PartitionEstimate, bool]:
        """Estimate a partition; return its estimate and whether it fits in memory."""
        key = tuple(parts)
        if key not in self.seen:
            estimate = self.estimator.estimate(key)
            self.seen[key] = estimate, self.found.offer(estimate)
            if self.split is not None:
                self.split.offer(estimate)
        return self.seen[key]

    @property
    def estimates(self) -> list[PartitionEstimate]:
        """The best estimates, each once."""
        others = self.split.estimates if self.split is not None else []
        return [*self.found.estimates, *(estimate for estimate in others if estimate not in self.found.estimates)]


@dataclass(frozen=True, slots=True)
class Search:
    """One planner's search over one problem, for one or more kinds of pipeline at once."""

    problem: Problem
    costs: CostModel
    tail: WholeBatchTail
    planner: str
    rankings: tuple[Ranking, ...]

    def over(self, table: SettingTable, form: GraphForm) -> None:
        """Search partitions of one form of the graph under every setting of a table.

        Partitions of a chain are estimated both as a graph of stages and as a sequential pipeline, others as a graph.
        """
        chain = all(isinstance(part, Leaf) for part in form.tree.parts)
        rankings = [ranking for ranking in self.rankings if chain or not ranking.estimator.chain]
        precision = _PRECISION[rankings[0].found.objective]
        targets = best_targets(table, form, self._ceiling(rankings), precision=precision)
        reached = np.flatnonzero(np.isfinite(targets))
        if not len(reached):
            return
        # The most promising first, so that the search can stop early.
        order = reached[np.argsort(targets[reached], kind="stable")]
        missed: list[dict[int, PartitionEstimate]] = [{} for _ in rankings]
        fitting: list[dict[int, float]] = [{} for _ in rankings]
        wider = np.array([1.0, *(() if rankings[0].found.objective == "bottleneck" else _RELAXED)])
        # One walk for all targets if it takes as long for few targets as for many.
        together = len(order) * table.units <= _SMALL_WALK
        found = TargetPartitions.of(table.only(order), form, targets[order, None] * (wider if together else 1.0))
        for position, setting in enumerate(order):
            if targets[setting] > self._ceiling(rankings):
                break
            parts = self._parts(found, position, 0)
            for at, ranking in enumerate(rankings):
                estimate, fits = ranking.offer(parts)
                if fits:
                    fitting[at][position] = ranking.found.score(estimate)
                else:
                    missed[at][int(setting)] = estimate
        best = {each for scores in fitting for each in sorted(scores, key=lambda at: scores[at])[:_RELAXED_SETTINGS]}
        if best and len(wider) > 1:
            positions = np.array(sorted(best, key=lambda at: order[at]), dtype=np.intp)
            chosen = order[positions]
            if not together:
                found = TargetPartitions.of(table.only(chosen), form, targets[chosen, None] * wider)
                positions = range(len(best))
            self._relaxed(found, zip(positions, targets[chosen], strict=True), rankings)
        for ranking, misses in zip(rankings, missed, strict=True):
            self._within_memory(table, form, misses, ranking, targets / precision)

    def _ceiling(self, rankings: Sequence[Ranking]) -> float:
        """Return the seconds per sample above which a plan cannot become a candidate."""
        return max(ranking.found.ceiling for ranking in rankings) / self.problem.batch_size

    def _parts(self, found: TargetPartitions, setting: int, target: int) -> list[Part]:
        return [*found.parts(setting, target), *([self.tail.part(self.problem)] if self.tail.ops else [])]

    def _relaxed(
        self, found: TargetPartitions, least: Iterable[tuple[int, float]], rankings: Sequence[Ranking]
    ) -> None:
        """Try partitions with a slower bottleneck, which may have fewer stages, and fill and drain faster.

        Args:
            found: the partitions by setting and target.
            least: positions of settings in `found`, and the smallest target of each.
            rankings: estimate the partitions and keep the best.
        """
        for setting, target in least:
            close = max(ranking.found.close for ranking in rankings) / self.problem.batch_size
            for position in range(1, found.targets):
                # A partition may be better than its relaxed target.
                if target * _RELAXED[position - 1] <= close:
                    parts = self._parts(found, setting, position)
                    for ranking in rankings:
                        ranking.offer(parts)

    def _within_memory(
        self, table: SettingTable, form: GraphForm, missed: dict[int, PartitionEstimate], ranking: Ranking, least: Array
    ) -> None:
        """Search the settings whose partitions did not fit again, with memory; all targets are at least `least`.

        The samples in flight of a stage depend on the stages after it, which a walk from the sources has not reached
        yet. Therefore the search assumes a number for each operator, compares it with the partition found, and raises
        it where the partition needs more. The published recursion solves the later subgraph first, which needs one
        table per in-flight count.
        """
        in_flight = np.zeros((len(self.problem.graph.ops), len(table.sizes)))
        for _ in range(_MEMORY_ROUNDS if missed else 0):
            for setting, estimate in missed.items():
                for part, held in zip(estimate.parts, estimate.in_flight, strict=True):
                    at = (self.costs.positions(part.ops), setting)
                    in_flight[at] = np.maximum(in_flight[at] * _MEMORY_MARGIN, held)
            again = np.array(sorted(missed), dtype=np.intp)
            targets = best_targets(
                table.only(again),
                form,
                self._ceiling([ranking]),
                in_flight[:, again],
                least=least[again],
                precision=_PRECISION[ranking.found.objective],
            )
            reached = np.isfinite(targets)
            again, targets = again[reached], targets[reached]
            if not len(again):
                return
            found = TargetPartitions.of(table.only(again), form, targets[:, None], in_flight[:, again])
            tried = {int(setting): ranking.offer(self._parts(found, at, 0)) for at, setting in enumerate(again)}
            missed = {setting: estimate for setting, (estimate, fits) in tried.items() if not fits}
            if not missed:
                return

    def exhaust(self, sizes: list[int]) -> None:
        """Find the best of all partitions of a small graph, including those that its forms do not contain.

        For a larger graph, find the best intervals of its topological order, for the micro-batch sizes of the best
        estimates. These are the partitions that the chain planners among the baselines find.
        """
        assert self.tail.before is not None
        ranking = self.rankings[0]
        graph, devices = self.tail.before, len(self.problem.cluster.devices)
        try:
            downsets = Downsets.of(graph, _FEW_DOWNSETS)
        except Infeasible:
            if len(graph.ops) * devices > _INTERVALS:
                return
            downsets = Downsets.chain(graph)
            sizes = sorted(
                {part.micro_batch for estimate in ranking.found.estimates for part in estimate.parts} & {*sizes}
            )
        table = DownsetTable.of(self.problem, self.costs, graph, downsets)
        for size in sizes:
            loads = StageLoads(table, size, degrees_of(self.problem, size))
            parts = table.parts(loads.bottleneck_search(self._ceiling([ranking])).solve(), size)
            if parts:
                ranking.offer([*parts, self.tail.part(self.problem)] if self.tail.ops else parts)

    def candidates(self) -> list[list[Plan]]:
        """Return the plans of every ranking's best estimates: one each, or one per device choice for the tail.

        Raises:
            Infeasible: nothing fits in memory; the message names the nearest miss.
        """
        found = [
            [plan for estimate in ranking.estimates for plan in self._plans(ranking, estimate)]
            for ranking in self.rankings
        ]
        if not any(found):
            even = ", even if every stage recomputes" if self.problem.recompute == "full" else ""
            miss = min((ranking.found for ranking in self.rankings), key=lambda each: each.shortfall)
            raise Infeasible(
                f"no partition of '{self.problem.graph.name}' over {len(self.problem.cluster.devices)} devices fits "
                f"in memory{even}: the nearest misses by {format_bytes(miss.shortfall)} "
                f"({miss.shortfall:.0f} bytes) at {miss.missing}",
                remedy="Use more devices, devices with more memory, a smaller batch, or split the largest submodule.",
            )
        return found

    def _plans(self, ranking: Ranking, estimate: PartitionEstimate) -> list[Plan]:
        plans = self._assembled(estimate, ranking.estimator.chain)
        # A partition that fits exactly may miss by a rounded byte here.
        fitting = [plan for plan in plans if memory_shortfall(plan) <= 1.0]
        for plan in [] if fitting else plans:
            # Each stage fits a device, but not the whole-batch tail and its host together.
            ranking.found.note(memory_shortfall(plan), f"the device that operator '{self.tail.ops[0]}' shares")
        return fitting

    def _assembled(self, estimate: PartitionEstimate, chain: bool) -> list[Plan]:
        if not self.tail.ops:
            return [assemble(self.problem, estimate.parts, planner=self.planner, chain=chain)]
        last = len(estimate.parts) - 1
        hosts: list[dict[int, int]] = [{last: host} for host in self.tail.hosts(self.problem, estimate.parts[:-1])]
        if sum(part.degree for part in estimate.parts) <= len(self.problem.cluster.devices):
            hosts.append({})
        return [assemble(self.problem, estimate.parts, planner=self.planner, chain=chain, hosts=host) for host in hosts]


def search(problem: Problem, options: Options, *, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Return the best plan found, by the caller's measure.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        chains: kinds of pipeline to search: False for a graph of stages, True for a sequential pipeline over the
            linearised graph. Both share the search, so that the second takes little time.

    Raises:
        Infeasible: nothing fits in memory.
    """
    if options.objective == "bottleneck" and options.micro_batch is None:
        return _best_of_sizes(problem, options, planner, chains)
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    split = options.objective == "step" and options.scheduled is not None
    rankings = tuple(
        Ranking(
            PartitionEstimator(problem, costs, chain),
            Candidates(options.objective),
            Candidates("split") if split else None,
        )
        for chain in chains
    )
    run = Search(problem, costs, WholeBatchTail.of(problem.graph), planner, rankings)
    if run.tail.before is None:
        for ranking in rankings:
            ranking.offer([run.tail.part(problem)])
    else:
        _sweep(run, decompose(run.tail.before), options)
    kinds = run.candidates()
    plans = _distinct(plan for kind in kinds for plan in kind)
    if options.objective == "bottleneck":
        return min(plans, key=bottleneck_seconds)
    return options.scheduled(plans) if options.scheduled is not None else options.best(plans)


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    # A graph of stages that happens to be a chain is found as a sequential pipeline too.
    found: dict[object, Plan] = {}
    for plan in plans:
        found.setdefault((plan.stages, plan.edges), plan)
    return list(found.values())


def _best_of_sizes(problem: Problem, options: Options, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Search the best bottleneck of every micro-batch size, as the published planner does, and compare the steps."""
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
    """Search every form of the graph, narrow forms and large units first.

    These are cheap to walk, and their results bound the rest of the search.
    """
    problem = run.problem
    sizes = [options.micro_batch] if options.micro_batch else micro_batch_sizes(problem.batch_size)
    units = [2**k for k in reversed(range(len(problem.cluster.devices).bit_length()))]
    tables = [SettingTable.of(problem, run.costs, unit, sizes, frozenset(tree.ops)) for unit in units]
    weights = shares(problem, run.costs)
    graphs = any(not ranking.estimator.chain for ranking in run.rankings)
    assert run.tail.before is not None
    for tree_form, reverse in _forms(run.tail.before, tree, graphs):
        form = GraphForm.of(problem, tree_form, reverse=reverse)
        for table in tables:
            run.over(table, form.for_units(table, weights))
    if graphs:
        run.exhaust(sizes)


def _forms(graph: Graph, tree: Series, graphs: bool) -> list[tuple[Series, bool]]:
    """Return the forms to cut: chains, then (for graphs of stages) wider and wider ones, the widest also reversed."""
    in_order = Series(tuple(Leaf(name) for name in graph.order))
    bundle = bundled(tree, 1)
    forms = [(in_order, False), *([(bundle, False)] if bundle.ops != in_order.ops else [])]
    widest = width(tree)
    if graphs and widest > 1:
        widths = [*(2**k for k in range(1, widest.bit_length()) if 2**k < widest), widest]
        forms += [(bundled(tree, groups), False) for groups in widths]
        forms.append((tree, True))
    return forms
