"""Records when everything happened: the spans of one rank, and those of all ranks as a trace."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple

from torch.profiler import record_function

from graphpipe.devices.device_kind import DeviceClock, Moment
from graphpipe.files.json_body import from_body, to_body
from graphpipe.model.torch_private import profiling
from graphpipe.plans import Plan
from graphpipe.run.comm.world import World
from graphpipe.trace import SPAN_WORDS, MemorySample, Span, SpanKind, Trace


class CurrentWork(NamedTuple):
    """What a rank is doing."""

    kind: SpanKind
    stage: int
    micro_batch: int
    """Number of the micro-batch; -1 if the work concerns the whole mini-batch."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """The spans of the last step on this rank. Unless `on`, nothing is recorded and nothing waits."""

    world: World
    on: bool
    spans: list[Span] = field(default_factory=list[Span])
    """The spans of the step, from its end on."""
    memory: list[MemorySample] = field(default_factory=list[MemorySample])
    clock: DeviceClock = field(init=False)
    began: Moment = None
    noted: "list[Recording]" = field(default_factory=lambda: list[Recording]())
    """The recordings of this step. They become spans once the seconds of their moments are known."""
    step_seconds: float = 0.0
    mini_batches: int = 1
    """Number of mini-batches of the last step or segment."""
    stages: tuple[str, ...] = ()
    """The names of the stages. If empty, torch's profiler shows their numbers."""
    doing: CurrentWork | None = None
    """What the rank is doing, or was doing when an error occurred."""
    not_recorded: "NotRecorded" = field(init=False)

    def __post_init__(self) -> None:
        self.not_recorded = NotRecorded(self)
        self.clock = self.world.kind.clock(self.world.device)

    def begin(self) -> None:
        """Discard the last step, and start the clock at the same time as all other ranks."""
        if self.on:
            self._forget()
            self.world.barrier()
            self.clock.settle()
            self.began = self.clock.now()

    def begin_at_once(self, margin_seconds: float) -> None:
        """Do the same for ranks on one machine, which share a clock: begin at a moment that all ranks agree on.

        A barrier would release many ranks on few cores one after another.
        """
        self._forget()
        self.began = start = max(self.world.exchange(time.perf_counter())) + margin_seconds
        time.sleep(max(0.0, start - time.perf_counter()))

    def _forget(self) -> None:
        self.spans.clear()
        self.noted.clear()
        self.memory.clear()
        self.world.kind.reset_peak(self.world.device)

    def end(self, devices: tuple[int, ...]) -> None:
        """Stop the clock, and record the peak memory if this rank has only one device."""
        if self.on:
            end = self.clock.now()
            self.clock.settle()
            self.step_seconds = self.clock.seconds(self.began, end)
            self.spans += [recording.span() for recording in self.noted]
            self.noted.clear()
            if len(devices) == 1:
                held = self.world.kind.peak_bytes(self.world.device)
                self.memory.append(MemorySample(device=devices[0], seconds=self.step_seconds, bytes=held))

    def span(
        self, device: int, kind: SpanKind, stage: int, micro_batch: int = -1, peer: int = -1, count: float = 0.0
    ) -> AbstractContextManager[None]:
        """Return a context that records a span, and names it to torch's profiler.

        Args:
            device: that does the work.
            kind: of the work.
            stage: that the work is for.
            micro_batch: -1 if it concerns the whole mini-batch.
            peer: the other device of a transfer.
            count: bytes of a transfer.
        """
        return self.span_of(CurrentWork(kind, stage, micro_batch), device, peer, count)

    def span_of(
        self, doing: CurrentWork, device: int, peer: int = -1, count: float = 0.0
    ) -> AbstractContextManager[None]:
        """Return the same for work that is described already."""
        self.doing = doing
        if not (self.on or profiling()):
            return self.not_recorded
        return Recording(self, device, doing, peer, count)

    def name(self, doing: CurrentWork) -> str:
        """Return the name that torch's profiler shows."""
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

    def gather(self, plan: Plan, devices: Iterable[int]) -> Trace:
        """Return the trace of all ranks; every rank must call this.

        Args:
            plan: that was run.
            devices: that ranks have.
        """
        trace = assemble(plan, self.world.exchange(self.own()), "measured", self.mini_batches)
        return replace(trace, used_devices=tuple(sorted(devices)))


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """A span that is not recorded. One object serves all spans, because it is entered for every task."""

    recorder: Recorder

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End. After an error `Recorder.doing` keeps what was being done."""
        if kind is None:
            self.recorder.doing = None


@dataclass(slots=True)
class Recording:
    """A span that is being recorded."""

    recorder: Recorder
    device: int
    doing: CurrentWork
    peer: int
    count: float
    start: Moment = None
    end: Moment = None
    named: record_function | None = None
    """The span of torch's profiler, while it is on."""

    def __enter__(self) -> None:
        """Begin."""
        recorder = self.recorder
        if recorder.on:
            self.start = recorder.clock.now()
        if profiling():
            self.named = record_function(recorder.name(self.doing))
            self.named.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End. After an error `Recorder.doing` keeps what was being done."""
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


def assemble(
    plan: Plan, ranks: Sequence[Mapping[str, Any]], source: Literal["measured", "emulated"], mini_batches: int = 1
) -> Trace:
    """Return the trace of one step or segment, from what each rank recorded (see `Recorder.own`)."""
    spans = [from_body(Span, body, "trace") for rank in ranks for body in rank["spans"]]
    return Trace(
        source=source,
        plan_fingerprint=plan.fingerprint,
        batch_size=plan.batch_size * mini_batches,
        device_names=tuple(device.name for device in plan.cluster.devices),
        used_devices=plan.used_devices,
        step_seconds=max(rank["seconds"] for rank in ranks),
        spans=tuple(sorted(spans, key=lambda span: (span.device, span.start_seconds))),
        memory=tuple(from_body(MemorySample, body, "trace") for rank in ranks for body in rank["memory"]),
    )
