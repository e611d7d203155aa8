"""When stages copy what they offload to the memory of their node, or to a neighbour, and back.

    task          F0   F1   F2   B0   F3   B1   B2   B3
    offload            0    1    2         3
    fetch                   0         1    2    3

A micro-batch is offloaded right after its forward, and fetched while the task before its backward runs. If the backward
comes directly after the forward, nothing is copied. A neighbour receives what is offloaded, and sends what is fetched.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from graphpipe.plans import Plan
from graphpipe.schedule.actions import Action, Compute, Fetch, Offload, ReceiveOffloaded, Send, SendOffloaded
from graphpipe.schedule.schedule import StageTask


def with_copies(plan: Plan, order: Sequence[tuple[int, Action]]) -> list[tuple[int, Action]]:
    """Return the total order of a schedule with the copies of the stages that offload."""
    if not any(stage.offload for stage in plan.stages):
        return list(order)
    tasks: dict[int, list[StageTask]] = {}
    for device, action in order:
        if isinstance(action, Compute) and action.task.kind != "U":
            tasks.setdefault(device, []).append(action.task)
    # A neighbour gets it after the messages of the forward, which other stages wait for.
    last = {
        (device, action.transfer.source_task): at
        for at, (device, action) in enumerate(order)
        if isinstance(action, Send)
    }
    later: dict[int, list[tuple[int, Action]]] = {}
    after: dict[tuple[int, StageTask], list[tuple[int, Action]]] = {}
    before: dict[tuple[int, StageTask], list[tuple[int, Action]]] = {}
    for device, listed in tasks.items():
        for at in copied(plan, listed):
            previous, task = listed[at - 1], listed[at]
            stage, micro_batch, neighbour = task.stage, task.micro_batch, plan.stages[task.stage].neighbour(device)
            forward = StageTask("F", stage, micro_batch)
            out: list[tuple[int, Action]] = [(device, Offload(stage, micro_batch))]
            back: list[tuple[int, Action]] = [(device, Fetch(stage, micro_batch))]
            if neighbour is not None:
                out.append((neighbour, ReceiveOffloaded(stage, micro_batch, device)))
                back.append((neighbour, SendOffloaded(stage, micro_batch, device)))
            if neighbour is not None and (sent := last.get((device, forward))) is not None:
                later[sent + 1] = out  # The receive stands right after the send.
            else:
                after[device, forward] = out
            before.setdefault((device, previous), []).extend(back)
    actions: list[tuple[int, Action]] = []
    for at, (device, action) in enumerate(order):
        key = (device, action.task) if isinstance(action, Compute) else None
        actions += before.get(key, ()) if key else ()
        actions.append((device, action))
        actions += (*(after.get(key, ()) if key else ()), *later.get(at, ()))
    return actions


def copied(plan: Plan, tasks: Sequence[StageTask]) -> Iterable[int]:
    """Yield the positions of those backwards of a device whose micro-batches are offloaded."""
    for at, (previous, task) in enumerate(pairwise(tasks), start=1):
        copies = task.kind == "B" and plan.stages[task.stage].offload
        if copies and previous != StageTask("F", task.stage, task.micro_batch):
            yield at
