"""GraphPipe's search for inference: chains, stages side by side, and small changes of the best of them."""

from collections.abc import Iterator

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.planners.inference.chains import chain_plans, sizes_of
from graphpipe.planners.inference.intervals import IntervalCosts
from graphpipe.planners.inference.parallel_stages import parallel_plan
from graphpipe.planners.inference.small_changes import improved
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan

_IMPROVED, _TRIALS = 3, 150
"""Plans that are improved, and the most evaluations for each."""


def plan_inference(problem: Problem, options: Options, *, planner: str) -> Plan:
    """Return the best plan found for inference, never worse than EdgePipe's.

    1. EdgePipe's chains over two linear orders of the graph, as chains and as graphs: stages that do not feed each
       other then run side by side.
    2. Operators on the devices where they end first, joined into stages (`parallel_plan`).
    3. Small changes of the best of these (`small_changes`).

    Raises:
        Infeasible: nothing fits in memory.
    """
    model = CostModel.of(problem.graph, problem.costs, problem.cluster, trains=False)
    plans = [plan for plan in _candidates(problem, options, model, planner) if memory_shortfall(plan) <= 0]
    if not plans:
        raise Infeasible(
            f"no stages of '{problem.graph.name}' over {len(problem.cluster.devices)} devices fit in memory",
            remedy="Use more devices, devices with more memory, or a smaller micro-batch.",
        )
    best = sorted(plans, key=options.evaluate)[:_IMPROVED]
    near = [improved(problem, plan, options.evaluate, _TRIALS) for plan in best]
    return min([best[0], *near], key=options.evaluate)


def _candidates(problem: Problem, options: Options, model: CostModel, planner: str) -> Iterator[Plan]:
    for order in dict.fromkeys((problem.graph.order, _other_order(problem.graph))):
        intervals = IntervalCosts.of(model, order)
        for chain in (True, False):
            yield from chain_plans(problem, options, intervals, planner=planner, chain=chain)
    for size in sizes_of(problem, options):
        yield parallel_plan(problem, size, planner=planner)


def _other_order(graph: Graph) -> tuple[str, ...]:
    """Return a topological order in which the branches come in turn, an operator of each."""
    missing = {name: len(before) for name, before in graph.predecessors.items()}
    ready, order = [name for name in graph.order if not missing[name]], list[str]()
    for name in ready:  # grows while it is read: breadth first
        order.append(name)
        for after in graph.successors[name]:
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    return tuple(order)
