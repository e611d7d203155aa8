"""Fit a whole plan into memory by what its stages recompute and offload, each operator on its own."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Literal, NamedTuple

from graphpipe.errors import Infeasible
from graphpipe.planners.problem.limits import SHARES
from graphpipe.planners.relief.relief import Relief
from graphpipe.plans.device_memory import host_bytes, memory_shortfall, spare_bytes, stage_memory
from graphpipe.plans.estimates import update_seconds
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_Way = Literal["host", "nowhere", "neighbours"]
"""Where stages may offload to."""


class _Place(NamedTuple):
    # Where a stage offloads to, and how many bytes have room there.
    devices: tuple[int, ...]
    bytes: float


_HOST = _Place((), inf)


def decides(plan: Plan) -> bool:
    """Return whether a stage names operators that it recomputes or offloads."""
    return any(stage.offload or not isinstance(stage.recompute, str) for stage in plan.stages)


def relieved(plan: Plan, most_seconds: float = inf, *, neighbours: bool = False) -> list[Plan]:
    """Return all plans of `each_relieved`; empty if none fit."""
    return list(each_relieved(plan, most_seconds, neighbours=neighbours))


def each_relieved(plan: Plan, most_seconds: float = inf, *, neighbours: bool = False) -> Iterator[Plan]:
    """Yield the plan with other decisions about memory, so that it fits.

    Each stage that lacks memory takes the decisions of fewest seconds (`Relief`). How much of its copies a stage hides
    shows only in the simulated step, so there is a plan for each of several guesses, and one without offloading.

    Args:
        plan: of any need for memory.
        most_seconds: of a step. The decisions in slower plans need not be the best.
        neighbours: also yield plans whose stages offload to devices with memory to spare.
    """
    plans, hopeless = list[Plan](), set[_Way]()
    for share in reversed(SHARES):
        ways: tuple[_Way, ...] = ("host", "nowhere") if share == SHARES[0] else ("host",)
        for way in (*ways, "neighbours") if neighbours else ways:
            if way in hopeless:
                continue
            try:
                fitted = _fitted(plan, share, most_seconds, way)
            except Infeasible:
                # With less time for copies, the same decisions take longer, and free as many bytes. Up to 12 operators
                # of a stage, nothing fits then either. Of more, `Relief` drops choices, and other ones with less time.
                # So this could leave out a plan. In 160 fits on the zoo it did not, with neighbours neither.
                hopeless.add(way)
                continue
            if fitted is not None and fitted not in plans:
                plans.append(fitted)
                yield fitted


def _fitted(plan: Plan, share: float, most_seconds: float, way: _Way) -> Plan | None:
    """Return the plan with decisions that let it fit; None if the memory of the nodes has too little room for them.

    Raises:
        Infeasible: a stage alone on its devices does not fit with any decisions.
    """
    stages = tuple(stage.keeping for stage in plan.stages)
    plan, period = replace(plan, stages=stages, prediction=None), _period_seconds(plan)
    for at in sorted(range(len(stages)), key=lambda at: -_total(plan, at)):
        stage, spare = plan.stages[at], spare_bytes(plan)
        short = -min(spare[device] for device in stage.devices)
        if short <= 0:
            continue
        window = share * max(0.0, period / plan.micro_batches(at) - _own_seconds(plan, stage))
        place = _neighbours(plan, stage, spare) if way == "neighbours" else _HOST
        relief = Relief(
            plan=plan,
            stage=replace(stage, offload_to=place.devices),
            window_seconds=window,
            offloads=way != "nowhere" and stage.state not in ("all", "layers"),
            most_offloaded=place.bytes,
            most_seconds=_room_seconds(plan, at, most_seconds),
        )
        changed = relief.fitted(_total(plan, at) - short)
        if changed is None and not plan.shares_devices:
            raise Infeasible(f"stage '{stage.name}' is {short} bytes short")
        changed = changed or replace(stage, recompute="full")
        plan = replace(plan, stages=(*plan.stages[:at], changed, *plan.stages[at + 1 :]))
    fits = memory_shortfall(plan) <= 0 and all(
        held <= plan.cluster.host_memory_bytes(node) for node, held in host_bytes(plan).items()
    )
    return plan if fits else None


def _neighbours(plan: Plan, stage: Stage, spare: Mapping[int, float]) -> _Place:
    """Return a device for each of the stage's, with the fastest link and then the most memory to spare.

    It is the memory of the nodes if there are too few, or if their links are slower.
    """
    chosen: list[int] = []
    for device in stage.devices:
        free = [other for other, left in spare.items() if left > 0 and other not in (*stage.devices, *chosen)]
        if not free:
            return _HOST
        best = min(free, key=lambda other: (plan.cluster.seconds_per_byte(device, other), -spare[other]))
        if plan.cluster.seconds_per_byte(device, best) >= plan.cost_model.copy_seconds(1.0, device):
            return _HOST
        chosen.append(best)
    return _Place(tuple(chosen), min(spare[device] for device in chosen))


def _total(plan: Plan, at: int) -> float:
    stage = plan.stages[at]
    return float(stage_memory(plan.cost_model, stage).total(stage.in_flight / stage.degree))


def _period_seconds(plan: Plan) -> float:
    """Return the seconds per mini-batch of the busiest device, without what it recomputes."""
    busy = dict.fromkeys(plan.used_devices, 0.0)
    for at, stage in enumerate(plan.stages):
        for device, seconds in _task_seconds(plan, stage):
            busy[device] += seconds * plan.micro_batches(at)
    return max(busy.values())


def _room_seconds(plan: Plan, at: int, most_seconds: float) -> float:
    """Return the seconds per micro-batch by which a stage may take longer, in a step of at most so many seconds."""
    own = max(seconds for _, seconds in _task_seconds(plan, plan.stages[at]))
    return (most_seconds - update_seconds(plan, at)) / plan.micro_batches(at) - own


def _own_seconds(plan: Plan, stage: Stage) -> float:
    """Return the seconds of a micro-batch in which a stage cannot copy."""
    return max(seconds for _, seconds in _task_seconds(plan, stage)) if plan.cluster.copies_take_devices else 0.0


def _task_seconds(plan: Plan, stage: Stage) -> Iterator[tuple[int, float]]:
    for device in stage.devices:
        task = plan.cost_model.task_seconds(stage.ops, device, stage.micro_batch / stage.degree)
        yield device, task.forward + task.backward
