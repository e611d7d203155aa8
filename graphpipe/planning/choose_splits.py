"""Choose which operators of the graph a plan splits, for any planner."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce

from graphpipe.costs.split_costs import split_costs
from graphpipe.errors import Infeasible
from graphpipe.graph import OpSplit, find_split, splittable, with_split
from graphpipe.planners.problem.limits import FEW
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.settings import AUTO_SPLIT, NO_SPLIT, SplitChoice
from graphpipe.plans import Plan


def plan_with_splits(
    problem: Problem,
    choice: SplitChoice,
    find: Callable[[Problem], Plan],
    seconds: Callable[[Plan], float],
    tried: int = FEW,
) -> Plan:
    """Return the plan of a planner, with operators split.

    With `auto`, the planner plans the graph as it is. Then operators that can be split by inputs are tried one after
    the other, those with the most bytes of weights first. The planner plans again with the operator split in addition.
    The split stays if the step is shorter. What an operator's split gains may depend on others, so the result need not
    be the best of all subsets. If nothing fits in memory, the layer with the most weights is split by outputs, in 2
    parts, 4 and so on up to the number of devices. An embedding with fewer columns than parts is split by rows.

    Args:
        problem: operators of its graph that are split already stay so.
        choice: which operators to split.
        find: plans a problem. It raises `Infeasible` if no plan fits.
        seconds: of one step of a plan.
        tried: most operators whose split by inputs `auto` tries, those with the most weights.

    Raises:
        InvalidInput: a name is not an operator that can be split.
        Infeasible: no plan fits in memory, whichever of the chosen operators are split.
    """
    if choice == AUTO_SPLIT:
        return _best(problem, find, seconds, tried)
    names = () if choice == NO_SPLIT else (choice,) if isinstance(choice, str) else choice
    done = () if problem.graph.origin is None else [each.op for each in problem.graph.origin.split_ops]
    new = [name for name in dict.fromkeys(names) if name not in done and name.rpartition(":")[0] not in done]
    return find(reduce(_with, [find_split(problem.graph, name) for name in new], problem))


def _best(problem: Problem, find: Callable[[Problem], Plan], seconds: Callable[[Plan], float], tried: int) -> Plan:
    best: tuple[float, Plan] | None = None
    misses: list[Infeasible] = []
    by_inputs = [each for each in splittable(problem.graph) if each.by == "inputs"]
    for split in (None, *by_inputs[:tried]):
        candidate = problem if split is None else _with(problem, split)
        try:
            plan = find(candidate)
        except Infeasible as miss:
            misses.append(miss)
            problem = candidate if best is None else problem  # the next split may let it fit
            continue
        timed = seconds(plan), plan
        if best is None or timed[0] < best[0]:
            best, problem = timed, candidate
    if best is None:
        return _first_that_fits(problem, find, misses[0])
    return best[1]


def _first_that_fits(problem: Problem, find: Callable[[Problem], Plan], miss: Infeasible) -> Plan:
    possible = [each for each in splittable(problem.graph) if each.by != "inputs"]
    ways = [each for each in possible if each.op == possible[0].op]  # an embedding by outputs, and then by rows
    devices = len(problem.cluster.devices)
    for parts in (2**power for power in range(1, devices.bit_length()) if ways):
        split = next((each for each in ways if each.branches[0].stop >= parts), ways[-1])
        with suppress(Infeasible):
            return find(_with(problem, split.into(min(parts, split.branches[0].stop))))
    raise miss


def _with(problem: Problem, split: OpSplit) -> Problem:
    costs = split_costs(problem.costs, problem.graph, split, problem.cluster)
    return replace(problem, graph=with_split(problem.graph, split), costs=costs)
