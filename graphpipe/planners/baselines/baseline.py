"""The common part of the baseline planners: try all micro-batch sizes, and make plans of the partitions that fit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.problem.ascending import Ascending
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan
from graphpipe.units import format_bytes

Partitioner = Callable[[DownsetTable, int], Iterable[list[Part]]]
"""Given a table of downsets and a micro-batch size, returns the planner's best partitions by its own objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A published planner of sequential pipelines, run synchronously.

    It finds a partition for every micro-batch size by its own objective. `Options.evaluate` chooses among the sizes.
    """

    name: str
    partitioner: Partitioner
    schedule: str = "1f1b"
    downsets: Callable[[Graph], Downsets] = Downsets.chain

    def plan(self, problem: Problem, options: Options) -> Plan:
        """Return the best plan.

        Raises:
            Infeasible: nothing fits in memory, or the graph has too many downsets.
        """
        tail = WholeBatchTail.of(problem.graph)
        partitions = self._partitions(problem, tail, options)
        plans = [plan for parts in partitions for plan in self._finished(problem, tail, parts)]
        fitting = [plan for plan in plans if memory_shortfall(plan) <= 0]
        if not fitting:
            missing = min(map(memory_shortfall, plans), default=inf)
            raise Infeasible(
                f"no partition of '{problem.graph.name}' that {self.name} finds over {len(problem.cluster.devices)} "
                f"devices fits in memory: the nearest misses by {format_bytes(missing)} ({missing:.0f} bytes)",
                remedy="Use more devices, devices with more memory, a smaller batch, or another planner.",
            )
        fast = Ascending(options.evaluate)
        for plan in fitting:
            # The first bound is found more quickly.
            quick = options.most_seconds == inf or least_step_seconds(plan) < options.most_seconds
            if quick and (least := options.least(plan)) < options.most_seconds:
                fast.add(plan, least)
        if (best := next(iter(fast), None)) is None:
            raise Infeasible(f"every plan that {self.name} finds takes at least {options.most_seconds} seconds")
        return best

    def _partitions(self, problem: Problem, tail: WholeBatchTail, options: Options) -> Iterable[list[Part]]:
        if tail.before is None:
            return [[]]
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        downset_table = DownsetTable.of(problem, costs, tail.before, self.downsets(tail.before))
        sizes = options.sizes(problem.batch_size)
        return [parts for size in sizes for parts in self.partitioner(downset_table, size)]

    def _finished(self, problem: Problem, tail: WholeBatchTail, parts: list[Part]) -> list[Plan]:
        """Return the plans of a partition: one, or one per device choice for the whole-batch tail."""
        if not tail.ops:
            return [self._assembled(problem, parts, {})]
        hosts: list[dict[int, int]] = [{len(parts): host} for host in tail.hosts(problem, parts)]
        if sum(part.degree for part in parts) < len(problem.cluster.devices):
            hosts.append({})
        return [self._assembled(problem, [*parts, tail.part(problem)], host) for host in hosts]

    def _assembled(self, problem: Problem, parts: list[Part], hosts: dict[int, int]) -> Plan:
        return assemble(problem, parts, planner=self.name, schedule=self.schedule, chain=True, hosts=hosts)
