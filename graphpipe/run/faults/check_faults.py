"""Checks before a training that its injected faults can strike: each rank must reach the phase of its faults."""

from collections.abc import Collection, Iterable, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.faults.fault import Fault
from graphpipe.schedule import (
    Compute,
    Fetch,
    Offload,
    Receive,
    ReceiveOffloaded,
    Reduce,
    ReduceTied,
    Send,
    SendOffloaded,
)
from graphpipe.schedule.actions import Action
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment


def check_faults(
    faults: Iterable[Fault],
    phases: Sequence[Collection[str]],
    *,
    steps: int,
    every: int | None,
    timeout_seconds: float,
) -> None:
    """Check that every fault can strike in a training.

    Args:
        faults: to be injected.
        phases: the phases that each rank reaches in a step, by rank (see `phases_by_rank`).
        steps: of the whole training.
        every: steps between checkpoints; None: there are no checkpoints.
        timeout_seconds: how long ranks wait for a silent rank.

    Raises:
        InvalidInput: the rank or step does not exist, the rank never reaches the phase, the step has no checkpoint, or
            a `slow` lasts longer than the time limit.
    """
    for fault in faults:
        where = f"fault '{fault}'"
        if fault.rank >= len(phases):
            raise InvalidInput(f"there are {len(phases)} ranks, from 0", where=where, remedy="Choose one of them.")
        if fault.phase not in phases[fault.rank]:
            others = [str(rank) for rank, own in enumerate(phases) if fault.phase in own]
            raise InvalidInput(
                f"rank {fault.rank} never reaches phase '{fault.phase}' in this plan",
                where=where,
                remedy=f"Ranks that do: {', '.join(others) or 'none'}.",
            )
        if fault.step > steps:
            raise InvalidInput(f"there are {steps} steps, from 1", where=where, remedy="Choose one of them.")
        if fault.phase == "checkpoint" and (every is None or (fault.step % every and fault.step != steps)):
            made = f"one is made every {every} steps" if every else "none is made"
            raise InvalidInput(f"there is no checkpoint after step {fault.step}: {made}", where=where)
        if fault.kind == "slow" and fault.seconds >= timeout_seconds:
            raise InvalidInput(
                f"lasts {fault.seconds:g} s, ranks wait {timeout_seconds:g} s for a silent rank",
                where=where,
                remedy="Use 'stop', or raise run.timeout_seconds.",
            )


def phases_by_rank(plan: Plan, ranks: int) -> list[set[str]]:
    """Return the phases that each rank reaches in a step. Every rank has an optimizer and writes checkpoints."""
    placement = RankPlacement.of(plan, ranks)
    phases = [{"optimizer", "checkpoint"} for _ in range(ranks)]
    schedule = build_schedule(plan) if plan.weights == "flush" else build_segment(plan, 1)
    for device, action in lower(plan, schedule).order:
        if phase := _phase(action, placement):
            phases[placement.rank_of[device]].add(phase)
    return phases


def _phase(action: Action, placement: RankPlacement) -> str:
    match action:
        case Compute(task):
            return {"F": "forward", "U": "optimizer"}.get(task.kind, "backward")
        case Send(transfer) | Receive(transfer):
            ends = {placement.rank_of[end] for end in (transfer.source_device, transfer.target_device)}
            phase = "send" if isinstance(action, Send) else "receive"
            return phase if len(ends) == 2 else ""
        case Reduce() | ReduceTied():
            return "reduce"
        case Offload() | Fetch() | ReceiveOffloaded() | SendOffloaded():
            return ""
