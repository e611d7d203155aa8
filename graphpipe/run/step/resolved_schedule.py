"""One rank's part of a schedule with everything looked up, once, because every step runs the same schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.device.stream import Stream
from graphpipe.run.step.recorder import CurrentWork
from graphpipe.schedule import Action, LoweredSchedule, StageTask, Transfer

AnyReplica = TypeVar("AnyReplica")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTask(Generic[AnyReplica]):
    """A task of this rank, with all that it needs."""

    device: int
    task: StageTask
    doing: CurrentWork
    """The task, as the recorder names it."""
    phase: str
    """The task, as `StatusReporter` names it."""
    replica: AnyReplica
    mini_batch: int
    """Its mini-batch in the segment."""
    rows: SampleRange
    """Its samples in that mini-batch, at least one."""
    stream: Stream
    """The stream of its stage."""
    taken: Sequence[Transfer]
    """Transfers of this rank that other ranks have received before this task, or that it waits for."""


@dataclass(frozen=True, slots=True)
class ResolvedSchedule(Generic[AnyReplica]):
    """The tasks, messages and reductions of one rank."""

    lowered: LoweredSchedule
    first_tasks: Sequence[ResolvedTask[AnyReplica]]
    """The tasks before the first message or reduction."""
    rest: Sequence[tuple[int, ResolvedTask[AnyReplica] | Action]]
    """All later actions, each with its device."""
