"""The search of one planner for partitions: over one form of the graph, over all partitions, and their plans."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph.series_parallel import Leaf
from graphpipe.planners.baselines.dapple import shortest_step
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import Counting, StageLoads
from graphpipe.planners.problem.limits import (
    CLOSE,
    DOWNSETS,
    FEW,
    MEDIUM,
    NEAR,
    PASSES,
    PRECISION,
    RELAXED,
    RELAXED_SETTINGS,
)
from graphpipe.planners.problem.partition import Part, Problem, assemble, crossing_bytes
from graphpipe.planners.problem.stage_costs import degrees_of, smallest_memory_bytes
from graphpipe.planners.problem.too_large import too_large
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.planners.search.candidates import Ranking
from graphpipe.planners.search.partition_estimate import PartitionEstimate
from graphpipe.planners.search.setting_table import SettingTable
from graphpipe.planners.search.target_search import GraphForm, TargetPartitions, best_targets
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan
from graphpipe.units import format_bytes

Array = NDArray[np.float64]
_TRAFFIC: tuple[Counting, ...] = ("added", "longest")
_Partitions = Mapping[int, list[Part]]
"""Partitions by setting."""


@dataclass(frozen=True, slots=True)
class PartitionSearch:
    """One planner's search over one problem, for one or more kinds of pipeline at once."""

    problem: Problem
    costs: CostModel
    tail: WholeBatchTail
    planner: str
    rankings: tuple[Ranking, ...]
    most_seconds: float = np.inf
    """The most seconds of a mini-batch at the slowest stage."""
    relaxed: Sequence[float] = RELAXED
    """Multiples of the best target to try, ascending."""

    def search_form(self, table: SettingTable, form: GraphForm) -> None:
        """Search partitions of one form of the graph under every setting of a table.

        Partitions of a chain are estimated both as a graph of stages and as a sequential pipeline, others as a graph.
        """
        chain = all(isinstance(part, Leaf) for part in form.tree.parts)
        rankings = [ranking for ranking in self.rankings if chain or not ranking.estimator.chain]
        precision = PRECISION[rankings[0].best.objective]
        targets = best_targets(table, form, self._ceiling(rankings), precision=precision)
        reached = np.flatnonzero(np.isfinite(targets))
        if not len(reached):
            return
        # The most promising first, so that the search can stop early.
        order = reached[np.argsort(targets[reached], kind="stable")]
        missed: list[dict[int, PartitionEstimate]] = [{} for _ in rankings]
        fitting: list[dict[int, float]] = [{} for _ in rankings]
        wider = np.array([1.0, *(() if rankings[0].best.objective == "bottleneck" else self.relaxed)])
        # One walk for all targets if it takes as long for few targets as for many.
        together = len(order) * table.units <= MEDIUM
        partitions = TargetPartitions.of(table.only(order), form, targets[order, None] * (wider if together else 1.0))
        for position, setting in enumerate(order):
            if targets[setting] > self._ceiling(rankings):
                break
            parts = self._parts(partitions, position, 0)
            for at, ranking in enumerate(rankings):
                estimate, fits = ranking.offer(parts)
                if fits:
                    fitting[at][position] = ranking.best.score(estimate)
                elif ranking.best.score(estimate) <= NEAR * ranking.best.ceiling:
                    missed[at][int(setting)] = estimate
        best = {kept for scores in fitting for kept in sorted(scores, key=lambda at: scores[at])[:RELAXED_SETTINGS]}
        if best and len(wider) > 1:
            positions = np.array(sorted(best, key=lambda at: order[at]), dtype=np.intp)
            chosen = order[positions]
            if not together:
                partitions = TargetPartitions.of(table.only(chosen), form, targets[chosen, None] * wider)
                positions = range(len(best))
            self._relaxed(partitions, zip(positions, targets[chosen], strict=True), rankings)
        known: dict[object, _Partitions] = {}
        for ranking, misses in zip(rankings, missed, strict=True):
            self._within_memory(table, form, misses, ranking, targets / precision, known)

    def _ceiling(self, rankings: Sequence[Ranking]) -> float:
        """Return the seconds per sample above which a plan cannot become a candidate."""
        most = max(ranking.best.ceiling for ranking in rankings)
        return min(most, self.most_seconds) / self.problem.batch_size

    def _parts(self, partitions: TargetPartitions, setting: int, target: int) -> list[Part]:
        return [*partitions.parts(setting, target), *([self.tail.part(self.problem)] if self.tail.ops else [])]

    def _relaxed(
        self, partitions: TargetPartitions, least: Iterable[tuple[int, float]], rankings: Sequence[Ranking]
    ) -> None:
        """Try partitions with a slower bottleneck, which may have fewer stages, and fill and drain faster.

        Args:
            partitions: by setting and target.
            least: positions of settings in `partitions`, and the smallest target of each.
            rankings: estimate the partitions and keep the best.
        """
        for setting, target in least:
            close = max(ranking.best.close for ranking in rankings) / self.problem.batch_size
            for position in range(1, partitions.targets):
                # A partition may be better than its relaxed target.
                if target * self.relaxed[position - 1] <= close:
                    parts = self._parts(partitions, setting, position)
                    for ranking in rankings:
                        ranking.offer(parts)

    def _within_memory(
        self,
        table: SettingTable,
        form: GraphForm,
        missed: dict[int, PartitionEstimate],
        ranking: Ranking,
        least: Array,
        known: dict[object, _Partitions],
    ) -> None:
        """Search the settings whose partitions did not fit again, with memory; all targets are at least `least`.

        The samples in flight of a stage depend on the stages after it, which a walk from the sources has not reached
        yet. Therefore the search assumes a number for each operator, compares it with the partition found, and raises
        it where the partition needs more. The published recursion solves the later subgraph first, which needs one
        table per in-flight count.

        Rankings that assume the same numbers share `known`: what has been found under them.
        """
        in_flight = np.zeros((len(self.problem.graph.ops), len(table.sizes)))
        for _ in range(PASSES if missed else 0):
            for setting, estimate in missed.items():
                for part, held in zip(estimate.parts, estimate.in_flight, strict=True):
                    at = (self.costs.positions(part.ops), setting)
                    in_flight[at] = np.maximum(in_flight[at] * CLOSE, held)
            again = np.array(sorted(missed), dtype=np.intp)
            assumed, ceiling = in_flight[:, again], self._ceiling([ranking])
            key = again.tobytes(), assumed.tobytes(), ceiling
            if key not in known:
                precision = PRECISION[ranking.best.objective]
                chosen = table.only(again)
                targets = best_targets(chosen, form, ceiling, assumed, least=least[again], precision=precision)
                known[key] = self._reached(chosen, form, targets, assumed)
            tried = {int(again[at]): ranking.offer(parts) for at, parts in known[key].items()}
            missed = {setting: estimate for setting, (estimate, fits) in tried.items() if not fits}
            if not missed:
                return

    def _reached(self, table: SettingTable, form: GraphForm, targets: Array, in_flight: Array) -> _Partitions:
        """Return the partitions of the settings with a finite target, by their position in the table."""
        reached = np.flatnonzero(np.isfinite(targets))
        if not len(reached):
            return {}
        partitions = TargetPartitions.of(table.only(reached), form, targets[reached, None], in_flight[:, reached])
        return {int(setting): self._parts(partitions, at, 0) for at, setting in enumerate(reached)}

    def exhaust(self, sizes: list[int]) -> None:
        """Find the best of all partitions of a small graph, including those that its forms do not contain.

        For a larger graph, find the best intervals of its topological order, for the micro-batch sizes of the best
        estimates. These are the partitions that the planners among the baselines find. Micro-batch sizes whose
        partitions so far are far from the best ones are left out.

        Messages either hide behind computing, as PipeDream counts them, or are added to it, as Piper counts them. The
        first takes messages as long as the computing, and then every stage waits for them under most schedules.
        """
        assert self.tail.before is not None
        ranking = self.rankings[0]
        if self.most_seconds < np.inf and not ranking.best.estimates:
            return  # No form comes near to what the caller wants.
        graph, devices = self.tail.before, len(self.problem.cluster.devices)
        try:
            downsets = Downsets.of(graph, DOWNSETS)
        except Infeasible:
            if len(graph.ops) * devices > MEDIUM:
                return
            downsets = Downsets.chain(graph)
            sizes = sorted(
                {part.micro_batch for estimate in ranking.best.estimates for part in estimate.parts} & {*sizes}
            )
        table = DownsetTable.of(self.problem, self.costs, graph, downsets)
        small = len(graph.ops) * devices <= MEDIUM
        for size, traffic in product(sizes, _TRAFFIC):
            if self._is_hopeless(size):
                continue
            # Beside plans that are fast enough, the nearest miss tells nothing, except to `shortest_chains`.
            misses = not ranking.best.estimates or (small and self.most_seconds == np.inf)
            loads = StageLoads(table, size, degrees_of(self.problem, size), traffic=traffic)
            ceiling = self._ceiling([ranking])
            if loads.least_bottleneck() > ceiling or (not misses and too_large(self.problem, size)):
                continue
            if traffic == "added":  # Stages may look slower than in their estimates, in which messages hide.
                ceiling = min(ranking.best.close, self.most_seconds) / self.problem.batch_size
            stages = loads.bottleneck_search(ceiling)
            if misses or stages.may_fit:
                self._offer(table.parts(stages.solve(), size))

    def _is_hopeless(self, size: int) -> bool:
        """Return whether the partitions of a micro-batch size are so slow that none of them becomes a candidate."""
        ranking = self.rankings[0]
        if size in ranking.best_of_size:
            return ranking.best_of_size[size] > CLOSE * ranking.best.ceiling
        return ranking.missed_of_size.get(size, 0.0) > NEAR * ranking.best.ceiling

    def _offer(self, parts: list[Part]) -> None:
        if parts:
            self.rankings[0].offer([*parts, self.tail.part(self.problem)] if self.tail.ops else parts)

    def shortest_chains(self) -> list[Plan]:
        """Return the plans of the shortest steps that DAPPLE finds, if sequential pipelines are near the best estimate.

        The search spreads updates over the mini-batch. DAPPLE counts them after the last micro-batch, so that it finds
        other stages if some have much computing and others many parameters. The list is empty for a large graph or
        cluster, and if memory excludes partitions that are much faster: the shortest chains, which are as fast, do not
        fit either. The micro-batch sizes are those of the best estimates.
        """
        ranking = self.rankings[0]
        graph, devices = self.tail.before, len(self.problem.cluster.devices)
        best = ranking.best.estimates
        share = 1 if ranking.estimator.waiting else 3  # Split backwards fill most of the time that updates take.
        most, tried = MEDIUM // share, FEW // share
        if graph is None or not best or len(graph.ops) * devices > most:
            return []
        near = CLOSE * ranking.best.score(best[0])
        if ranking.best.missed * NEAR < ranking.best.score(best[0]):
            return []
        if not any(ranking.best.score(estimate) <= near and _is_chain(self.problem, estimate) for estimate in best):
            return []
        table = DownsetTable.of(self.problem, self.costs, graph, Downsets.chain(graph))
        tail = [self.tail.part(self.problem)] if self.tail.ops else []
        sizes = list(dict.fromkeys(estimate.parts[0].micro_batch for estimate in best))
        chains = [parts for size in sizes[:tried] if (parts := shortest_step(table, size, near))]
        estimates = [ranking.estimator.estimate([*parts, *tail]) for parts in chains]
        plans = [plan for estimate in estimates for plan in self._assembled(estimate, ranking.estimator.chain)]
        return [plan for plan in plans if memory_shortfall(plan) <= 0]

    def candidates(self) -> list[list[Plan]]:
        """Return the plans of every ranking's best estimates: one each, or one per device choice for the tail.

        Raises:
            Infeasible: nothing fits in memory; the message names the nearest miss.
        """
        plans = [
            [plan for estimate in ranking.estimates for plan in self._plans(ranking, estimate)]
            for ranking in self.rankings
        ]
        if not any(plans):
            reliefs = ["recomputes"] if self.problem.recompute == "full" else []
            reliefs += ["shards its state"] if self.problem.state != "whole" else []
            even = f", even if every stage {' and '.join(reliefs)}" if reliefs else ""
            miss = min((ranking.best for ranking in self.rankings), key=lambda candidates: candidates.shortfall)
            raise Infeasible(
                f"no partition of '{self.problem.graph.name}' over {len(self.problem.cluster.devices)} devices fits "
                f"in memory{even}: the nearest misses by {format_bytes(miss.shortfall)} "
                f"({miss.shortfall:.0f} bytes) at {miss.missing}",
                remedy="Use more devices, devices with more memory, a smaller batch, or split the largest submodule.",
            )
        return plans

    def with_memory(self, times: float) -> list[Plan]:
        """Return the plans of the best partitions so far, of those that fit if devices have this many times their
        memory."""
        more, plans = (times - 1) * smallest_memory_bytes(self.problem), list[Plan]()
        for ranking in self.rankings:
            fitting = [estimate for estimate, _ in ranking.seen.values() if min(estimate.spare_bytes) + more >= 0]
            for estimate in sorted(fitting, key=ranking.best.score)[: ranking.best.most]:
                plans += self._assembled(estimate, ranking.estimator.chain)
        return plans

    def _plans(self, ranking: Ranking, estimate: PartitionEstimate) -> list[Plan]:
        plans = self._assembled(estimate, ranking.estimator.chain)
        # A partition that fits exactly may miss by a rounded byte here.
        fitting = [plan for plan in plans if memory_shortfall(plan) <= 1.0]
        for plan in [] if fitting else plans:
            # Each stage fits a device, but not the whole-batch tail and its host together.
            ranking.best.note(memory_shortfall(plan), f"the device that operator '{self.tail.ops[0]}' shares")
        return fitting

    def _assembled(self, estimate: PartitionEstimate, chain: bool) -> list[Plan]:
        if not self.tail.ops:
            return [assemble(self.problem, estimate.parts, planner=self.planner, chain=chain)]
        last = len(estimate.parts) - 1
        hosts: list[dict[int, int]] = [{last: host} for host in self.tail.hosts(self.problem, estimate.parts[:-1])]
        if sum(part.degree for part in estimate.parts) <= len(self.problem.cluster.devices):
            hosts.append({})
        return [assemble(self.problem, estimate.parts, planner=self.planner, chain=chain, hosts=host) for host in hosts]


def _is_chain(problem: Problem, estimate: PartitionEstimate) -> bool:
    crossing = crossing_bytes(problem.graph, estimate.parts)
    stages = len(estimate.parts)
    return stages > 1 and all((stage, stage + 1) in crossing for stage in range(stages - 1))
