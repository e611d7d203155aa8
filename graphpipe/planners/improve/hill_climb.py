"""Hill climbing from a finished plan: operators change stages, and stages change their micro-batch sizes.

The search before it gives all stages one micro-batch size, and estimates partitions in closed form. The closed form
ignores late messages and stages that wait for two others. Small changes near the best plan correct for that.
Jeon et al., GraphPipe (ASPLOS 2025), section 6, allow each stage its own size and find that it gains little.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from graphpipe.planners.problem.partition import Part, Problem, assemble, crossing_bytes, is_chain
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan

Change = Callable[[Sequence[Part]], list[Part] | None]
"""Returns the stages after a change; None if the change is impossible."""
_PASSES = 4
_WORTH = 1.0005
"""Smaller gains are not worth an unequal plan."""


def hill_climb(plan: Plan, evaluate: Callable[[Plan, float], float], trials: int) -> Plan:
    """Return the plan, or a faster one near it; its stages keep their devices and their order.

    An operator may move to a stage that it feeds or that feeds it, and a stage may halve or double its micro-batch.
    A change is kept if it shortens the step and fits in memory, until a whole pass changes nothing.

    Args:
        plan: under 1F1B, or any schedule that takes the samples in flight of Algorithm 2.
        evaluate: returns the seconds of one step of a plan; infinite if the plan does not run, or if the step takes
            longer than the second argument.
        trials: most evaluations.
    """
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    best, seconds = plan, evaluate(plan, inf)
    for _ in range(_PASSES):
        start = best
        for change in _changes(best):
            trial = _changed(problem, best, change)
            if trial is None or least_step_seconds(trial) >= seconds:
                continue
            if not trials:
                return best
            trials -= 1
            trial_seconds = evaluate(trial, seconds)
            if trial_seconds * _WORTH < seconds:
                best, seconds = trial, trial_seconds
        if best is start:
            break
    return best


def _changes(plan: Plan) -> Iterator[Change]:
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.ops}
    fixed = {number for name, number in stage_of.items() if plan.graph[name].whole_batch}
    moves = dict[tuple[str, int], None]()
    for edge in plan.graph.edges:
        source, target = stage_of[edge.source], stage_of[edge.target]
        if source != target and not {source, target} & fixed:
            moves |= {(edge.source, target): None, (edge.target, source): None}
    order = plan.graph.index
    for name, stage in moves:
        yield lambda parts, name=name, stage=stage: _moved(parts, name, stage, order)
    for stage in range(len(plan.stages)):
        if stage not in fixed:
            yield lambda parts, stage=stage: _resized(parts, stage, plan.batch_size, parts[stage].micro_batch // 2)
            yield lambda parts, stage=stage: _resized(parts, stage, plan.batch_size, parts[stage].micro_batch * 2)


def _moved(parts: Sequence[Part], name: str, stage: int, order: dict[str, int]) -> list[Part] | None:
    home = next(number for number, part in enumerate(parts) if name in part.ops)
    if home == stage or len(parts[home].ops) == 1:
        return None
    found = list(parts)
    found[home] = replace(parts[home], ops=tuple(other for other in parts[home].ops if other != name))
    found[stage] = replace(parts[stage], ops=tuple(sorted((*parts[stage].ops, name), key=order.__getitem__)))
    return found


def _resized(parts: Sequence[Part], stage: int, batch_size: int, size: int) -> list[Part] | None:
    if not size or batch_size % size or size % parts[stage].degree:
        return None
    return [*parts[:stage], replace(parts[stage], micro_batch=size), *parts[stage + 1 :]]


def _changed(problem: Problem, plan: Plan, change: Change) -> Plan | None:
    parts = change([Part(it.ops, it.degree, it.micro_batch, it.burst, it.recompute) for it in plan.stages])
    # Edges must go forward, or a stage would not be convex or would precede one that feeds it.
    if parts is None or any(source > target for source, target in crossing_bytes(problem.graph, parts)):
        return None
    devices = [stage.devices for stage in plan.stages]
    trial = assemble(problem, parts, planner=plan.planner, chain=is_chain(plan), devices=devices)
    return trial if memory_shortfall(trial) <= 0 else None
