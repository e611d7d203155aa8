"""What happens on one rank while it trains: the lines of `events/rank-R.jsonl` in a run's folder.

A line is a JSON object. Every one has

    schema_version  1
    event           start, step, memory, checkpoint, failure or end; it decides the other fields
    rank            the rank it happened on
    unix_seconds    when, by the clock of that rank's host

and the fields of the class below whose `event` it has. A reader passes over an event it does not know: new ones may
come without a new version, which says that a field here has changed its meaning or is gone.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from graphpipe.trace import SpanKind

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEvent:
    """A rank has joined the others and is about to train. A run that was resumed has several."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    host: str
    pid: int
    device: str
    """As torch calls it: cpu, cuda:0."""
    stages: tuple[str, ...]
    """That the rank hosts."""
    plan_fingerprint: str
    graphpipe: str
    """Its version."""
    torch: str
    """Its version."""
    first_step: int
    """That will be done, from 1."""
    event: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """A step is done."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """From 1."""
    loss: float
    """Of the whole mini-batch, the same on every rank."""
    seconds: float
    samples_per_second: float
    event: Literal["step"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """Memory after a step: what torch has allocated on a GPU, the resident memory of the process on the CPU."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """0 before the first."""
    held_bytes: float
    peak_bytes: float
    """Of the step on a GPU, of the process so far on the CPU."""
    event: Literal["memory"] = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent:
    """This rank has taken its part of a checkpoint, which is written while training goes on."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """After which it was taken."""
    seconds: float
    """That training waited."""
    event: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureEvent:
    """Training has ended with an error on this rank. The rank whose failure is earliest is where to look first."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """That was under way, from 1."""
    error: str
    """The exception's type."""
    message: str
    task: SpanKind | None
    """What the rank was doing: a task (F, B, I, W), waiting for what it receives, a reduction or the optimizer step."""
    stage: str | None
    """Of the task."""
    micro_batch: int | None
    """Of the task, if it is of one."""
    traceback: str = ""
    """As Python prints it, which the terminal does not show."""
    event: Literal["failure"] = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """All steps are done."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The last."""
    event: Literal["end"] = "end"


Event = StartEvent | StepEvent | MemoryEvent | CheckpointEvent | FailureEvent | EndEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event, and where and when it happened."""

    rank: int
    unix_seconds: float
    event: Annotated[Event, Field(discriminator="event")]
