"""The phases of a step that each rank comes to: what a fault can strike in."""

from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.schedule import Compute, Receive, Reduce, ReduceShared, Send, lower, schedule
from graphpipe.schedule.lowered import Action


def phases_by_rank(plan: Plan, ranks: int) -> list[set[str]]:
    """Return what each rank does in a step of this plan; every rank has an optimizer and writes checkpoints."""
    placement = Placement.of(plan, ranks)
    phases = [{"optimizer", "checkpoint"} for _ in range(ranks)]
    for device, action in lower(plan, schedule(plan)).order:
        if phase := _phase(action, placement):
            phases[placement.rank_of[device]].add(phase)
    return phases


def _phase(action: Action, placement: Placement) -> str:
    match action:
        case Compute(task):
            return "forward" if task.kind == "F" else "backward"
        case Send(transfer) | Receive(transfer):
            ends = {placement.rank_of[end] for end in (transfer.source_device, transfer.target_device)}
            phase = "send" if isinstance(action, Send) else "receive"
            return phase if len(ends) == 2 else ""
        case Reduce() | ReduceShared():
            return "reduce"
