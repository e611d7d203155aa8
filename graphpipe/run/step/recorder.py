"""When everything happened: spans of one rank, and all ranks' spans as a trace."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch
from torch.profiler import record_function

from graphpipe.files.json_document import from_body, to_body
from graphpipe.model.torch_private import profiling
from graphpipe.plans import Plan
from graphpipe.run.comm.world import World
from graphpipe.run.device.device_clock import Clock, Moment, clock_of
from graphpipe.run.device.memory_usage import peak_bytes
from graphpipe.trace import SPAN_WORDS, MemorySample, Span, SpanKind, Trace


class Doing(NamedTuple):
    """What a rank is at."""

    kind: SpanKind
    stage: int
    micro_batch: int
    """-1 for what concerns the whole mini-batch."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """The spans of the last step on this rank; nothing is recorded, and nothing waited for, unless `on`."""

    world: World
    on: bool
    spans: list[Span] = field(default_factory=list[Span])
    """Known at the end of the step."""
    memory: list[MemorySample] = field(default_factory=list[MemorySample])
    clock: Clock = field(init=False)
    began: Moment = None
    noted: "list[Recording]" = field(default_factory=lambda: list[Recording]())
    """What this step's spans will be of, once the seconds of their moments are known."""
    step_seconds: float = 0.0
    stages: tuple[str, ...] = ()
    """Their names; without them their numbers stand in what torch's profiler records."""
    doing: Doing | None = None
    """What the rank is at, or was at when an error ended it."""
    unseen: "Unseen" = field(init=False)

    def __post_init__(self) -> None:
        self.unseen = Unseen(self)
        self.clock = clock_of(self.world.device)

    def begin(self) -> None:
        """Forget the last step, and start the clock together with all other ranks."""
        if self.on:
            self._forget()
            self.world.barrier()
            self.clock.settle()
            self.began = self.clock.now()

    def begin_at_once(self, margin_seconds: float) -> None:
        """Do the same where all ranks share a machine and so a clock: begin at a moment that suits all.

        A barrier of many ranks on few cores lets them go one after another.
        """
        self._forget()
        self.began = start = max(self.world.exchange(time.perf_counter())) + margin_seconds
        time.sleep(max(0.0, start - time.perf_counter()))

    def _forget(self) -> None:
        self.spans.clear()
        self.noted.clear()
        self.memory.clear()
        if self.world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.world.device)

    def end(self, devices: tuple[int, ...]) -> None:
        """Stop the clock, and note the peak memory where it can be told which device's it is."""
        if self.on:
            end = self.clock.now()
            self.clock.settle()
            self.step_seconds = self.clock.seconds(self.began, end)
            self.spans += [recording.span() for recording in self.noted]
            self.noted.clear()
            if len(devices) == 1:
                held = peak_bytes(self.world.device)
                self.memory.append(MemorySample(device=devices[0], seconds=self.step_seconds, bytes=held))

    def span(
        self, device: int, kind: SpanKind, stage: int, micro_batch: int = -1, peer: int = -1, count: float = 0.0
    ) -> AbstractContextManager[None]:
        """Return what to be inside of: what happens there is recorded as a span, and named to torch's profiler.

        Args:
            device: that does it.
            kind: of work.
            stage: that it is of.
            micro_batch: -1 for what concerns the whole mini-batch.
            peer: the other device of a transfer.
            count: bytes of a transfer.
        """
        return self.span_of(Doing(kind, stage, micro_batch), device, peer, count)

    def span_of(self, doing: Doing, device: int, peer: int = -1, count: float = 0.0) -> AbstractContextManager[None]:
        """Return the same for what is named already."""
        self.doing = doing
        if not (self.on or profiling()):
            return self.unseen
        return Recording(self, device, doing, peer, count)

    def name(self, doing: Doing) -> str:
        """Return what torch's profiler shows."""
        stage = self.stages[doing.stage] if self.stages else str(doing.stage)
        micro_batch = f" micro-batch {doing.micro_batch}" if doing.micro_batch >= 0 else ""
        return f"{SPAN_WORDS[doing.kind]} {stage}{micro_batch}"

    def own(self) -> dict[str, Any]:
        """Return what this rank did in the last step, as JSON can hold it."""
        return {
            "seconds": self.step_seconds,
            "spans": [to_body(span) for span in self.spans],
            "memory": [to_body(sample) for sample in self.memory],
        }

    def gather(self, plan: Plan) -> Trace:
        """Return the trace of all ranks; every rank must call this."""
        return assemble(plan, self.world.exchange(self.own()), "measured")


@dataclass(frozen=True, slots=True)
class Unseen:
    """What nobody records. One object for all spans, and no generator's context: it stands between all tasks."""

    recorder: Recorder

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End; after an error, what was done stays in `Recorder.doing`."""
        if kind is None:
            self.recorder.doing = None


@dataclass(slots=True)
class Recording:
    """A span under way, which is recorded."""

    recorder: Recorder
    device: int
    doing: Doing
    peer: int
    count: float
    start: Moment = None
    end: Moment = None
    named: record_function | None = None
    """What torch's profiler sees, while it looks."""

    def __enter__(self) -> None:
        """Begin."""
        recorder = self.recorder
        if recorder.on:
            self.start = recorder.clock.now()
        if profiling():
            self.named = record_function(recorder.name(self.doing))
            self.named.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End; after an error, what was done stays in `Recorder.doing`."""
        if self.named is not None:
            self.named.__exit__(kind, error, at)
        if kind is not None:
            return
        self.recorder.doing = None
        if self.recorder.on:
            self.end = self.recorder.clock.now()
            self.recorder.noted.append(self)

    def span(self) -> Span:
        """Return the span, once the clock has settled."""
        seconds, began = self.recorder.clock.seconds, self.recorder.began
        return Span(
            device=self.device,
            kind=self.doing.kind,
            stage=self.doing.stage,
            micro_batch=self.doing.micro_batch,
            start_seconds=seconds(began, self.start),
            end_seconds=seconds(began, self.end),
            peer=self.peer,
            bytes=self.count,
        )


def assemble(plan: Plan, ranks: Sequence[Mapping[str, Any]], source: Literal["measured", "emulated"]) -> Trace:
    """Return the trace of what each rank says of one step (see `Recorder.own`)."""
    spans = [from_body(Span, body, "trace") for rank in ranks for body in rank["spans"]]
    return Trace(
        source=source,
        plan_fingerprint=plan.fingerprint,
        batch_size=plan.batch_size,
        device_names=tuple(device.name for device in plan.cluster.devices),
        used_devices=plan.used_devices,
        step_seconds=max(rank["seconds"] for rank in ranks),
        spans=tuple(sorted(spans, key=lambda span: (span.device, span.start_seconds))),
        memory=tuple(from_body(MemorySample, body, "trace") for rank in ranks for body in rank["memory"]),
    )
