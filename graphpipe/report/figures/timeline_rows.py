"""The data of a timeline, as columns of numbers with one entry per span.

rows   d0  predicted          Each device has a row of tasks and a thinner row of transfers, predicted above measured.
           transfers          A span has a row, a colour, a stage, a micro-batch, two times and its samples.
       d0  measured           Idle times are spans too: warm-up before a device's first task, bubbles between tasks,
           transfers          drain after its last task.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import source_word
from graphpipe.report.figures.palette import code
from graphpipe.trace import Span, Trace

_TASKS = ("F", "B", "I", "W", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the picture."""

    device: str
    source: str
    """`predicted`, `rehearsed` or `measured`."""
    transfers: bool
    """True for the row of transfers, False for the row of tasks."""


@dataclass(slots=True)
class Columns:
    """One list per property, with one entry per span."""

    row: list[int] = field(default_factory=list[int])
    code: list[int] = field(default_factory=list[int])
    """The number of its colour, from `palette.code`."""
    stage: list[int] = field(default_factory=list[int])
    """-1 for an idle time."""
    micro_batch: list[int] = field(default_factory=list[int])
    start: list[float] = field(default_factory=list[float])
    """Seconds."""
    end: list[float] = field(default_factory=list[float])
    first_sample: list[int] = field(default_factory=list[int])
    samples: list[int] = field(default_factory=list[int])
    """How many samples of the mini-batch this device computes. 0 if that is unknown."""
    peer: list[int] = field(default_factory=list[int])
    bytes: list[float] = field(default_factory=list[float])

    def add(self, row: int, kind: str, start: float, end: float, span: Span | None, samples: SampleRange) -> None:
        """Add a span, or an idle time."""
        self.row.append(row)
        self.code.append(code(kind, span.stage if span else 0))
        self.stage.append(span.stage if span else -1)
        self.micro_batch.append(span.micro_batch if span else -1)
        self.start.append(float(f"{start:.9g}"))
        self.end.append(float(f"{end:.9g}"))
        self.first_sample.append(samples.start)
        self.samples.append(len(samples))
        self.peer.append(span.peer if span else -1)
        self.bytes.append(round(span.bytes) if span else 0)


def timeline_rows(subject: Subject) -> tuple[list[Row], Columns]:
    """Return the rows from top to bottom, and the spans in them."""
    rows: list[Row] = []
    columns = Columns()
    by_device = [(trace, _by_device(trace)) for trace in subject.traces]
    for device in sorted({device for trace in subject.traces for device in trace.used_devices}):
        for trace, spans in by_device:
            _add_device(rows, columns, subject.plan, trace, device, spans.get(device, []))
    return rows, columns


def _by_device(trace: Trace) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in trace.spans:
        found.setdefault(span.device, []).append(span)
    return found


def _add_device(
    rows: list[Row], columns: Columns, plan: Plan | None, trace: Trace, device: int, spans: list[Span]
) -> None:
    name, source = trace.device_names[device], source_word(trace.source)
    tasks = sorted((span for span in spans if span.kind in _TASKS), key=lambda span: span.start_seconds)
    others = [span for span in spans if span.kind not in _TASKS]
    rows.append(Row(device=name, source=source, transfers=False))
    for kind, start, end in _idle(tasks, trace.step_seconds):
        columns.add(len(rows) - 1, kind, start, end, None, _NO_SAMPLES)
    for span in tasks:
        columns.add(len(rows) - 1, span.kind, span.start_seconds, span.end_seconds, span, _samples(plan, span))
    if others:
        rows.append(Row(device=name, source=source, transfers=True))
    for span in others:
        columns.add(len(rows) - 1, span.kind, span.start_seconds, span.end_seconds, span, _NO_SAMPLES)


def _idle(tasks: list[Span], step_seconds: float) -> Iterator[tuple[str, float, float]]:
    """Yield (kind, start, end) of the gaps between tasks, which are in order of their starts."""
    until = 0.0
    for span in tasks:
        if span.start_seconds > until:
            yield "bubble" if until else "warm-up", until, span.start_seconds
        until = max(until, span.end_seconds)
    if step_seconds > until:
        yield "drain", until, step_seconds


_NO_SAMPLES = SampleRange(0, 0)


def _samples(plan: Plan | None, span: Span) -> SampleRange:
    if plan is None or span.micro_batch < 0:
        return _NO_SAMPLES
    stage = plan.stages[span.stage]
    replica = stage.devices.index(span.device)
    return sample_range(plan.batch_size, stage.micro_batch, stage.degree, span.micro_batch, replica)
