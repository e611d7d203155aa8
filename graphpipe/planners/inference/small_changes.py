"""Small changes of a finished plan for inference: an operator moves, or a stage changes its device."""

from collections.abc import Callable, Iterator

from graphpipe.planners.problem.limits import WORTH
from graphpipe.planners.problem.partition import Part, Problem, assemble_in_order
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY

Placed = list[tuple[Part, int]]
"""The stages with their devices."""


def improved(problem: Problem, plan: Plan, evaluate: Callable[[Plan], float], trials: int) -> Plan:
    """Return the plan, or a better one that small changes lead to, one after the other while they help.

    Args:
        problem: of the plan.
        plan: of single-device stages.
        evaluate: returns the seconds to minimise.
        trials: most evaluations.
    """
    best, seconds, improves = plan, evaluate(plan), True
    while improves:
        improves = False
        stages = [(Part(stage.ops, 1, stage.micro_batch), stage.devices[0]) for stage in best.stages]
        for change in _changes(best, stages):
            if (trial := _plan_of(problem, change, plan.planner)) is None:
                continue
            if not trials:
                return best
            trials -= 1
            if (trial_seconds := evaluate(trial)) * WORTH < seconds:
                best, seconds, improves = trial, trial_seconds, True
                break
    return best


def _changes(plan: Plan, stages: Placed) -> Iterator[Placed]:
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.ops}
    moves = dict[tuple[str, int], None]()
    for edge in plan.graph.edges:
        source, target = stage_of[edge.source], stage_of[edge.target]
        if source != target:
            moves |= {(edge.source, target): None, (edge.target, source): None}
    for name, stage in moves:
        yield _moved(plan, stages, name, stage_of[name], stage)
    used = {device for _, device in stages}
    for number, (part, device) in enumerate(stages):
        for other in range(len(plan.cluster.devices)):
            if other == device:
                continue
            changed = list(stages)
            changed[number] = part, other
            if other in used:  # the other device's stages come here
                changed = [(hosted, device) if there == other else (hosted, there) for hosted, there in changed]
                changed[number] = part, other
            yield changed


def _moved(plan: Plan, stages: Placed, name: str, home: int, stage: int) -> Placed:
    changed = list(stages)
    index = plan.graph.index
    left = tuple(other for other in stages[home][0].ops if other != name)
    come = tuple(sorted((*stages[stage][0].ops, name), key=index.__getitem__))
    for number, ops in ((home, left), (stage, come)):
        part, device = stages[number]
        changed[number] = Part(ops, 1, part.micro_batch), device
    return [(part, device) for part, device in changed if part.ops]


def _plan_of(problem: Problem, stages: Placed, planner: str) -> Plan | None:
    parts = [part for part, _ in stages]
    devices = [(device,) for _, device in stages]
    trial = assemble_in_order(problem, parts, devices, planner=planner, schedule=FORWARD_ONLY)
    return trial if trial is not None and memory_shortfall(trial) <= 0 else None
