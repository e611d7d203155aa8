"""Submodules that a stage may recompute as one region, where its graph has their operators one by one.

An operator that is recomputed alone keeps its inputs, so recomputing neighbours alone frees little: the output of
each is kept for the next. Together they keep only what enters the first:

    norm, up, act, down alone     4 inputs are kept       blocks.3 = (norm, up, act, down) together     1 input
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from graphpipe.costs.recompute_regions import regions
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_FEWEST = 2
"""Operators that make a region."""


def fitted_submodules(
    plan: Plan, stage: Stage, fits: Callable[[tuple[str, ...]], bool], seconds_of: Callable[[tuple[str, ...]], float]
) -> Iterator[tuple[str, ...]]:
    """Yield submodules that fit if they are recomputed, at most one choice for each depth of submodules.

    At each depth, regions that free most per second are recomputed first, as few as fit (by halving). Then each of them
    is left out again if the rest still fits, the slowest first.

    Args:
        plan: of which the stage is.
        stage: without decisions.
        fits: whether the stage fits if it recomputes these.
        seconds_of: what recomputing these takes.
    """
    for names in _by_depth(plan, stage):
        worth = {name: _freed(plan, stage, name) / max(seconds_of((name,)), 1e-12) for name in names}
        order = tuple(sorted(names, key=lambda name: -worth[name]))
        if not fits(order):
            continue
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(order[:middle]) else (middle + 1, high)
        chosen = order[:high]
        for name in sorted(chosen, key=lambda name: -seconds_of((name,))):
            without = tuple(other for other in chosen if other != name)
            chosen = without if without and fits(without) else chosen
        yield chosen


def _by_depth(plan: Plan, stage: Stage) -> Iterator[tuple[str, ...]]:
    # Submodules with several operators in the stage that depend on each other only in one direction.
    depth = 1
    while deeper := [name for name in stage.ops if name.count(".") >= depth]:
        inside = Counter(".".join(name.split(".")[:depth]) for name in deeper)
        names = tuple(name for name, count in inside.items() if count >= _FEWEST)
        if names and _acyclic(plan, stage, names):
            yield names
        depth += 1


def _acyclic(plan: Plan, stage: Stage, names: Sequence[str]) -> bool:
    # Whether the stage's graph can be ordered if each region is one node.
    home = {op: number for number, region in enumerate(regions(stage.ops, tuple(names))) for op in region}
    node = {op: home.get(op, op) for op in stage.ops}
    before = {each: set[object]() for each in node.values()}
    for op in stage.ops:
        before[node[op]] |= {node[other] for other in plan.graph.predecessors[op] if other in node} - {node[op]}
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


def _freed(plan: Plan, stage: Stage, name: str) -> float:
    def saved(stage: Stage) -> float:
        return stage_memory(plan.cost_model, stage).saved

    return saved(stage) - saved(replace(stage, recompute=(name,)))
