"""The step of a plan's stages for less and less memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from graphpipe.errors import InvalidInput
from graphpipe.planners.improve.relieved import relieved
from graphpipe.plans.device_memory import needed_bytes, stage_memory
from graphpipe.plans.plan import Plan

_LIMITS = 16
"""Limits between the memory for everything and that of the weights and optimizer state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The fastest plan found in so much memory."""

    memory_bytes: float
    """The most bytes that a device needs."""
    step_seconds: float
    plan: Plan


def memory_curve(plan: Plan, evaluate: Callable[[Plan], float]) -> tuple[CurvePoint, ...]:
    """Return the Pareto curve of memory and step seconds for a plan's stages, the most memory first.

    It begins with keeping everything. Then each device gets less memory, limit by limit, until the stages do not fit
    with any decisions (`relieved`). A point is left out if another one is as fast with as little memory.

    Args:
        plan: that trains. Its own decisions about memory do not count.
        evaluate: seconds of one step of a plan.

    Raises:
        InvalidInput: the plan does not train.
    """
    if not plan.trains:
        raise InvalidInput("the plan does not train, so it keeps no activations", where="memory curve")
    stages = tuple(stage.keeping for stage in plan.stages)
    keeping = replace(plan, stages=stages, prediction=None)
    points = [_point(keeping, evaluate)]
    state = max(stage_memory(plan.cost_model, stage).state for stage in stages)
    for turn in reversed(range(1, _LIMITS)):
        limit = state + (points[0].memory_bytes - state) * turn / _LIMITS
        types = tuple(replace(kind, memory_bytes=limit) for kind in plan.cluster.device_types)
        relieved_plans = relieved(replace(keeping, cluster=replace(plan.cluster, device_types=types)))
        if not relieved_plans:
            break
        points += (_point(replace(fitting, cluster=plan.cluster), evaluate) for fitting in relieved_plans)
    return tuple(reversed(_pareto(points)))


def _point(plan: Plan, evaluate: Callable[[Plan], float]) -> CurvePoint:
    return CurvePoint(memory_bytes=max(needed_bytes(plan).values()), step_seconds=evaluate(plan), plan=plan)


def _pareto(points: list[CurvePoint]) -> list[CurvePoint]:
    """Return the points that no other one beats, the least memory first."""
    best: list[CurvePoint] = []
    for point in sorted(points, key=lambda point: (point.step_seconds, point.memory_bytes)):
        if not best or point.memory_bytes < best[-1].memory_bytes:
            best.append(point)
    return best[::-1]
