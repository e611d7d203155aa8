"""When stages copy what they offload to the memory of their node and back.

    task          F0   F1   F2   B0   F3   B1   B2   B3
    to the node        0    1    2         3
    and back                0         1    2    3

A micro-batch leaves right after its forward, and returns while the task before its backward runs. If the backward comes
directly after the forward, nothing is copied.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from graphpipe.plans import Plan
from graphpipe.schedule.actions import Action, Compute, Evict, Fetch
from graphpipe.schedule.schedule import StageTask


def with_copies(plan: Plan, order: Sequence[tuple[int, Action]]) -> list[tuple[int, Action]]:
    """Return the total order of a schedule with the copies of the stages that offload."""
    if not any(stage.offload for stage in plan.stages):
        return list(order)
    tasks: dict[int, list[StageTask]] = {}
    for device, action in order:
        if isinstance(action, Compute) and action.task.kind != "U":
            tasks.setdefault(device, []).append(action.task)
    after: dict[tuple[int, StageTask], Action] = {}
    before: dict[tuple[int, StageTask], list[Action]] = {}
    for device, listed in tasks.items():
        for previous, task in copied(plan, listed):
            after[device, StageTask("F", task.stage, task.micro_batch)] = Evict(task.stage, task.micro_batch)
            before.setdefault((device, previous), []).append(Fetch(task.stage, task.micro_batch))
    found: list[tuple[int, Action]] = []
    for device, action in order:
        key = (device, action.task) if isinstance(action, Compute) else None
        found += [(device, copy) for copy in before.get(key, ())] if key else []
        found.append((device, action))
        found += [(device, after[key])] if key in after else []
    return found


def copied(plan: Plan, tasks: Sequence[StageTask]) -> Iterable[tuple[StageTask, StageTask]]:
    """Yield the backwards of a device whose micro-batches are offloaded, each with the task before it."""
    for previous, task in pairwise(tasks):
        directly = previous == StageTask("F", task.stage, task.micro_batch)
        if task.kind == "B" and plan.stages[task.stage].offload and not directly:
            yield previous, task
