"""When everything happened: spans of one rank, and all ranks' spans as a trace."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch.profiler import record_function

from graphpipe.documents import from_body, to_body
from graphpipe.plan import Plan
from graphpipe.run.clock import Clock, Moment, clock_of
from graphpipe.run.memory_use import peak_bytes
from graphpipe.run.world import World
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
    noted: list[tuple[Span, Moment, Moment]] = field(default_factory=list[tuple[Span, Moment, Moment]])
    """Spans of this step with their start and end, all but the seconds of which is known."""
    step_seconds: float = 0.0
    stages: tuple[str, ...] = ()
    """Their names; without them their numbers stand in what torch's profiler records."""
    doing: Doing | None = None
    """What the rank is at, or was at when an error ended it."""

    def __post_init__(self) -> None:
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
            self.spans += [self._timed(*each) for each in self.noted]
            self.noted.clear()
            if len(devices) == 1:
                held = peak_bytes(self.world.device)
                self.memory.append(MemorySample(device=devices[0], seconds=self.step_seconds, bytes=held))

    @contextmanager
    def span(
        self, device: int, kind: SpanKind, stage: int, micro_batch: int = -1, peer: int = -1, count: float = 0.0
    ) -> Generator[None]:
        """Record what happens inside as a span, and name it to torch's profiler; `count` is the bytes of a transfer."""
        self.doing = Doing(kind, stage, micro_batch)
        start = self.clock.now() if self.on else None
        with record_function(self._name(self.doing)):
            yield
        self.doing = None
        if self.on:
            span = Span(
                device=device,
                kind=kind,
                stage=stage,
                micro_batch=micro_batch,
                start_seconds=0.0,
                end_seconds=0.0,
                peer=peer,
                bytes=count,
            )
            self.noted.append((span, start, self.clock.now()))

    def _timed(self, span: Span, start: Moment, end: Moment) -> Span:
        seconds = self.clock.seconds
        return replace(span, start_seconds=seconds(self.began, start), end_seconds=seconds(self.began, end))

    def _name(self, doing: Doing) -> str:
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
