"""A schedule on a single rank: it computes each replica whole, as the first of the devices that share it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from graphpipe.plans import Plan
from graphpipe.schedule import (
    Action,
    Compute,
    Fetch,
    Offload,
    Receive,
    ReceiveOffloaded,
    Reduce,
    ReduceTied,
    Send,
    SendOffloaded,
    Transfer,
)


def played_alone(order: Iterable[tuple[int, Action]], plan: Plan) -> Iterator[tuple[int, Action]]:
    """Yield the actions of the first device of every replica. Other devices would do the same.

    Args:
        order: the actions of all devices.
        plan: with the stages.
    """
    if all(stage.tensor == 1 for stage in plan.stages):
        yield from order
        return
    for device, action in order:
        match action:
            case Send(transfer) if _first(plan, transfer.target_task.stage, transfer.target_device):
                alone = _between_first(plan, transfer)
                yield alone.source_device, Send(alone)
            case Receive(transfer) if _first(plan, transfer.target_task.stage, transfer.target_device):
                alone = _between_first(plan, transfer)
                yield alone.target_device, Receive(alone)
            case Compute(task) if _first(plan, task.stage, device):
                yield device, action
            case Reduce(stage) | Offload(stage) | Fetch(stage) if _first(plan, stage, device):
                yield device, action
            case ReceiveOffloaded(stage, _, source) | SendOffloaded(stage, _, source):
                if _first(plan, stage, source):
                    yield device, action
            case ReduceTied(number):
                stages = plan.tied_gradients[number].stages
                if any(device in plan.stages[at].peers[0] for at in stages):
                    yield device, action
            case _:
                pass


def _first(plan: Plan, stage: int, device: int) -> bool:
    # Whether the device is the first of those that share a replica.
    return device in plan.stages[stage].peers[0]


def _between_first(plan: Plan, transfer: Transfer) -> Transfer:
    stage = plan.stages[transfer.source_task.stage]
    return replace(transfer, source_device=stage.replicas[stage.replica_of(transfer.source_device)][0])
