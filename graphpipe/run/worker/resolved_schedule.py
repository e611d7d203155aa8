"""One rank's part of a schedule with everything looked up, once, because every step runs the same schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import cast

from graphpipe.devices.device_kind import Stream
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.worker.played_alone import played_alone
from graphpipe.run.worker.recorder import CurrentWork
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.schedule import Action, Compute, LoweredSchedule, StageTask, Transfer
from graphpipe.schedule.acknowledged_sends import find_acknowledged_sends


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTask:
    """A task of this rank, with all that it needs."""

    device: int
    """The device that runs the task."""
    task: StageTask
    """The task, as the schedule names it."""
    doing: CurrentWork
    """The task, as the recorder names it."""
    phase: str
    """The task, as `StatusReporter` names it."""
    replica: tuple[int, int]
    """The stage and the device of the replica that runs it."""
    mini_batch: int
    """The number of its mini-batch in the run."""
    rows: SampleRange
    """Its samples in that mini-batch, at least one."""
    stream: Stream
    """The stream of its stage."""
    taken: Sequence[Transfer]
    """Transfers of this rank that other ranks have received before this task, or that it waits for."""


@dataclass(frozen=True, slots=True)
class ResolvedSchedule:
    """The tasks, messages and reductions of one rank."""

    lowered: LoweredSchedule
    """The schedule of all ranks."""
    first_tasks: Sequence[ResolvedTask]
    """The tasks before the first message or reduction."""
    rest: Sequence[tuple[int, ResolvedTask | Action]]
    """All later actions, each with its device."""


def resolve_schedule(
    lowered: LoweredSchedule, batches: StepBatches, placement: RankPlacement, rank: int, streams: StageStreams
) -> ResolvedSchedule:
    """Return this rank's part of a schedule. A task without samples is left out.

    Args:
        lowered: the schedule of all ranks.
        batches: mini-batches of the numbers and sizes that the schedule is run with.
        placement: of the plan on the ranks.
        rank: this rank.
        streams: of this rank.
    """
    acknowledged = find_acknowledged_sends(lowered, placement.rank_of, rank)
    own: list[tuple[int, ResolvedTask | Action]] = []
    for device, action in lowered.order if placement.size > 1 else played_alone(lowered.order, placement.plan):
        if placement.rank_of[device] != rank:
            continue
        if not isinstance(action, Compute):
            own.append((device, action))
            continue
        task = action.task
        if not (rows := batches.rows_of(task, placement.plan.stages[task.stage], device)):
            continue
        mini_batch, rows_there = batches.locate(rows)
        resolved = ResolvedTask(
            device=device,
            task=task,
            doing=CurrentWork("optimizer" if task.kind == "U" else task.kind, task.stage, task.micro_batch),
            phase={"F": "forward", "U": "optimizer"}.get(task.kind, "backward"),
            replica=(task.stage, device),
            mini_batch=mini_batch,
            rows=rows_there,
            stream=streams.tasks(device),
            taken=acknowledged.get((device, task), ()),
        )
        own.append((device, resolved))
    first_tasks = [*takewhile(lambda action: isinstance(action, ResolvedTask), (action for _, action in own))]
    tasks = cast("list[ResolvedTask]", first_tasks)
    return ResolvedSchedule(lowered, tasks, own[len(first_tasks) :])
