"""What happens on one rank while it trains: the lines of `events/rank-R.jsonl` in a run's folder.

A line is a JSON object. Every line has

    schema_version  1
    event           start, step, memory, checkpoint, evaluation, pace, slow, failure or end: it decides the other fields
    rank            the rank on which it happened
    unix_seconds    when it happened, by the clock of that rank's host

and the fields of the class below with the same `event`. Readers skip events that they do not know, so that new events
do not need a new version. A new version means that a field here has changed its meaning or was removed.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from graphpipe.trace import SpanKind

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEvent:
    """A rank has joined the others and begins to train. A resumed run has several."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    host: str
    pid: int
    device: str
    """torch's name for it, such as cpu or cuda:0."""
    stages: tuple[str, ...]
    """The stages that the rank hosts."""
    plan_fingerprint: str
    graphpipe: str
    """Version of graphpipe."""
    torch: str
    """Version of torch."""
    first_step: int
    """The next step, from 1."""
    event: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """A step is done."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """From 1."""
    loss: float
    """Loss of the whole mini-batch. It is the same on every rank."""
    seconds: float
    samples_per_second: float
    event: Literal["step"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """Memory after a step: what torch has allocated on a GPU, or the resident memory of the process on the CPU."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """0 before the first step."""
    held_bytes: float
    peak_bytes: float
    """Peak of the step on a GPU, of the process so far on the CPU."""
    event: Literal["memory"] = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent:
    """This rank has copied its part of a checkpoint, which is written while training continues."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The last step before the checkpoint."""
    seconds: float
    """How long training waited."""
    event: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent:
    """The held-out samples were evaluated."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """Steps done."""
    loss: float | None
    metrics: dict[str, float]
    seconds: float
    """How long training waited."""
    event: Literal["evaluation"] = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureEvent:
    """Training has ended with an error on this rank. Look first at the rank whose failure is earliest."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The step in which it failed, from 1."""
    error: str
    """The exception's type."""
    message: str
    task: SpanKind | None
    """What the rank was doing: a task (F, B, I, W), a wait for a message, a reduction or the optimizer step."""
    stage: str | None
    """Stage of the task."""
    micro_batch: int | None
    """Micro-batch of the task. None for a task of the whole mini-batch."""
    traceback: str = ""
    """Python's traceback, which the terminal does not show."""
    event: Literal["failure"] = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceEvent:
    """How long this rank computed in its first steps, on a CPU. Compared with other ranks, it shows a slow device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The last of these steps."""
    steps: int
    seconds: float
    """In which the rank computed in one of them, median."""
    predicted_seconds: float
    event: Literal["pace"] = "pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowEvent:
    """This rank has become slow: forwards and backwards take several times as long as before, and as predicted."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The last slow step."""
    steps: int
    """How many steps were slow, one after another."""
    seconds: float
    """In which the rank computed in a slow step, median."""
    before_seconds: float
    """In which it computed in a step before, median."""
    predicted_seconds: float
    event: Literal["slow"] = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """All steps are done."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int
    """The last step."""
    event: Literal["end"] = "end"


Event = (
    StartEvent
    | StepEvent
    | MemoryEvent
    | CheckpointEvent
    | EvaluationEvent
    | PaceEvent
    | SlowEvent
    | FailureEvent
    | EndEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event with its rank and time."""

    rank: int
    unix_seconds: float
    event: Annotated[Event, Field(discriminator="event")]
