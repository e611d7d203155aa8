"""What waits between the halves of backwards, and whether devices have memory for it."""

from collections.abc import Sequence

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import between_halves, more_between_halves, spare_bytes, stage_memory
from graphpipe.schedule.schedule import StageTask

_ROUNDING = 1e-6


def has_memory_for_all(plan: Plan) -> bool:
    """Return whether every device has the memory for all of its samples in flight to wait between the halves.

    Then any schedule of the plan fits, and none needs to be built to know it.
    """
    spare = spare_bytes(plan)
    for number, stage in enumerate(plan.stages):
        more = more_between_halves(plan, number) * stage.in_flight / stage.degree
        for device in stage.devices:
            spare[device] -= more
    return min(spare.values()) >= 0


def has_memory(plan: Plan, devices: Sequence[Sequence[StageTask]]) -> bool:
    """Return whether the tasks of every device fit in its memory.

    A plan has room for all its samples in flight. A sample that waits for its weight gradient may need more than
    before, because gradients wait with it.

    Args:
        plan: of the tasks.
        devices: the tasks of each device of the cluster, in order.
    """
    split = {task.stage for tasks in devices for task in tasks if task.kind == "I"}
    if all(between_halves(plan.cost_model, plan.stages[number]).share <= 1.0 for number in split):
        return True
    spare = spare_bytes(plan)
    return all(
        most_beyond(plan, tasks) <= spare[device] + _ROUNDING * plan.cluster.type_of(device).memory_bytes
        for device, tasks in enumerate(devices)
        if tasks
    )


def most_beyond(plan: Plan, tasks: Sequence[StageTask]) -> float:
    """Return the most bytes that a device's tasks hold beyond what its stages with halves need with all samples in
    flight; negative if they never need as much."""
    split = {task.stage for task in tasks if task.kind == "I"}
    held: dict[int, dict[str, float]] = {}
    total = 0.0
    for number in split:
        stage = plan.stages[number]
        between = between_halves(plan.cost_model, stage)
        before, waiting = stage_memory(plan.cost_model, stage).per_sample, between.own + between.received
        size = stage.micro_batch / stage.degree
        held[number] = {"F": size * before, "I": size * (waiting - before), "W": -size * waiting, "B": -size * before}
        total -= before * stage.in_flight / stage.degree
    most = total
    for task in tasks:
        if task.stage in split:
            total += held[task.stage].get(task.kind, 0.0)
            most = max(most, total)
    return most
