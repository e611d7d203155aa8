"""What a rank has to know of a schedule, looked up once: a training runs the same one in every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.device.stream import Lane
from graphpipe.run.step.recorder import Doing
from graphpipe.schedule import Action, LoweredSchedule, Task, Transfer

AnyReplica = TypeVar("AnyReplica")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Generic[AnyReplica]):
    """A task of this rank, and what it needs."""

    device: int
    task: Task
    doing: Doing
    """The task as the recorder names it."""
    phase: str
    """And as the watch does."""
    replica: AnyReplica
    rows: SampleRange
    """The samples; there are some."""
    lane: Lane
    """Of its stage."""
    taken: Sequence[Transfer]
    """What this rank has sent, and others have taken by now."""


@dataclass(frozen=True, slots=True)
class Learnt(Generic[AnyReplica]):
    """A schedule as one rank has learnt it."""

    lowered: LoweredSchedule
    turns: Sequence[Turn[AnyReplica]]
    """What comes before its first message or reduction."""
    rest: Sequence[tuple[int, Turn[AnyReplica] | Action]]
    """All that comes then, and the devices that do it."""
