"""The data of a timeline, as columns of numbers with one entry per span.

rows   d0  predicted          Each device has a row of tasks and a thinner row of transfers, predicted above measured.
           transfers          A span has a row, a colour, a stage, a micro-batch, two times and its samples.
       d0  measured           Idle times are spans too: warm-up before a device's first task, bubbles between tasks,
           transfers          drain after its last task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.report.content.compared_plan import ComparedPlan
from graphpipe.report.content.device_groups import device_groups
from graphpipe.report.content.matched_hues import matched_hues
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.weight_reads import weight_reads_of
from graphpipe.report.content.wording import source_word
from graphpipe.report.figures.palette import code
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead, WeightReads
from graphpipe.trace import COMPUTING, Span, Trace

_READERS = ("F", "B", "I", "W")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the picture."""

    device: str
    """A device, or a plan and its stages if several plans are compared."""
    source: str
    """Where the times are from: `predicted`, `rehearsed` or `measured`."""
    transfers: bool
    """Whether the row has transfers, or else tasks."""


@dataclass(slots=True)
class Columns:
    """One list per property, with one entry per span."""

    row: list[int] = field(default_factory=list[int])
    code: list[int] = field(default_factory=list[int])
    """The number of the rectangle's colour, from `palette.code`."""
    odd: list[bool] = field(default_factory=list[bool])
    """Whether the mini-batch has an odd number. The colour is then from `palette.odd_colours`."""
    version: list[int] = field(default_factory=list[int])
    """Version of the weights that a task reads, without flushes; -1 if it is unknown, or does not read any."""
    ahead: list[int] = field(default_factory=list[int])
    """Updates by which the weights are predicted ahead. Negative: they are reconstructed, so many updates back."""
    stage: list[int] = field(default_factory=list[int])
    """Number of the stage; -1 for an idle time."""
    hue: list[int] = field(default_factory=list[int])
    """Number of the stage's hue."""
    micro_batch: list[int] = field(default_factory=list[int])
    start: list[float] = field(default_factory=list[float])
    """When the rectangle begins, in seconds."""
    end: list[float] = field(default_factory=list[float])
    first_sample: list[int] = field(default_factory=list[int])
    samples: list[int] = field(default_factory=list[int])
    """How many samples of the mini-batch this device computes. 0 if that is unknown."""
    peer: list[int] = field(default_factory=list[int])
    bytes: list[float] = field(default_factory=list[float])

    def add(
        self, row: int, kind: str, start: float, end: float, span: Span | None, step: "DrawnStep", samples: SampleRange
    ) -> None:
        """Add a span, or an idle time."""
        stage = span.stage + step.first_stage if span else -1
        self.row.append(row)
        self.hue.append(step.hue(span) if span else 0)
        self.code.append(code(kind, self.hue[-1]))
        self.odd.append(span is not None and kind in _READERS and bool(step.mini_batch(span) % 2))
        version, ahead = _read_of(step, span)
        self.version.append(version)
        self.ahead.append(ahead)
        self.stage.append(stage)
        self.micro_batch.append(span.micro_batch if span else -1)
        self.start.append(float(f"{start:.9g}"))
        self.end.append(float(f"{end:.9g}"))
        self.first_sample.append(samples.start)
        self.samples.append(len(samples))
        self.peer.append(span.peer + step.first_device if span and span.peer >= 0 else -1)
        self.bytes.append(round(span.bytes) if span else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """One step in a timeline."""

    trace: Trace
    plan: Plan | None
    name: str = ""
    """The name of the plan, if several plans are compared."""
    first_stage: int = 0
    """The number of the plan's first stage in the picture, which may show several plans."""
    first_device: int = 0
    hues: Sequence[int] = ()
    """The number of the hue of each stage; empty: its own number."""
    reads: WeightReads = field(default_factory=dict[StageTask, WeightRead])
    """Which weights the tasks read, if the plan does not flush."""

    def hue(self, span: Span) -> int:
        """Return the number of the hue of a span."""
        return self.hues[span.stage] if self.hues else span.stage + self.first_stage

    def mini_batch(self, span: Span) -> int:
        """Return the mini-batch of a task. 0 if there is no plan that says how many micro-batches it has."""
        return span.micro_batch // self.plan.micro_batches(span.stage) if self.plan is not None else 0


def timeline_rows(subject: Subject) -> tuple[list[Row], Columns]:
    """Return the rows from top to bottom, device by device, and the spans in them."""
    rows: list[Row] = []
    columns = Columns()
    steps = [
        (
            DrawnStep(trace=trace, plan=subject.plan, reads=weight_reads_of(subject.plan, trace)),
            _spans_by_device(trace),
        )
        for trace in subject.traces
    ]
    for device in sorted({device for trace in subject.traces for device in trace.used_devices}):
        for step, spans in steps:
            _add_device(rows, columns, step, spans.get(device, []), step.trace.device_names[device])
    return rows, columns


def drawn_steps(compared: Sequence[ComparedPlan]) -> list[DrawnStep]:
    """Return the steps of a comparison: the predicted ones of all plans, then those that ran."""
    hues = matched_hues([plan.plan for plan in compared])
    firsts = [sum(len(before.plan.stages) for before in compared[:at]) for at in range(len(compared))]
    devices = [sum(len(before.plan.cluster.devices) for before in compared[:at]) for at in range(len(compared))]
    return [
        DrawnStep(
            trace=trace,
            plan=plan.plan,
            name=plan.name,
            first_stage=firsts[at],
            first_device=devices[at],
            hues=hues[at],
        )
        for ran in (False, True)
        for at, plan in enumerate(compared)
        if (trace := plan.subject.measured if ran else plan.predicted) is not None
    ]


def compared_rows(steps: Sequence[DrawnStep]) -> tuple[list[Row], Columns]:
    """Return the rows of several plans from top to bottom, step by step: a row for one replica of each stage.

    Stages on the same devices share a row, and transfers are left out.
    """
    rows: list[Row] = []
    columns = Columns()
    for step in steps:
        assert step.plan is not None
        spans = _spans_by_device(step.trace)
        for group in device_groups(step.plan):
            device = group.devices[0]
            tasks = [span for span in spans.get(device, []) if span.kind in COMPUTING]
            _add_device(rows, columns, step, tasks, f"{step.name} {group.name}")
    return rows, columns


def _read_of(step: DrawnStep, span: Span | None) -> tuple[int, int]:
    if span is None or span.kind not in ("F", "B", "I", "W"):
        return _NOTHING_READ
    return step.reads.get(StageTask(span.kind, span.stage, span.micro_batch), _NOTHING_READ)


def _spans_by_device(trace: Trace) -> dict[int, list[Span]]:
    """Return the spans of each device."""
    spans_by_device: dict[int, list[Span]] = {}
    for span in trace.spans:
        spans_by_device.setdefault(span.device, []).append(span)
    return spans_by_device


def _add_device(rows: list[Row], columns: Columns, step: DrawnStep, spans: list[Span], name: str) -> None:
    """Add the rows of a device: its tasks and idle times, and below them its transfers, if there are any."""
    source = source_word(step.trace.source)
    tasks = sorted((span for span in spans if span.kind in COMPUTING), key=lambda span: span.start_seconds)
    others = [span for span in spans if span.kind not in COMPUTING]
    rows.append(Row(device=name, source=source, transfers=False))
    for kind, start, end in _idle(tasks, step.trace.step_seconds):
        columns.add(len(rows) - 1, kind, start, end, None, step, _NO_SAMPLES)
    for span in tasks:
        samples = _samples(step.plan, span)
        columns.add(len(rows) - 1, span.kind, span.start_seconds, span.end_seconds, span, step, samples)
    if others:
        rows.append(Row(device=name, source=source, transfers=True))
    for span in others:
        columns.add(len(rows) - 1, span.kind, span.start_seconds, span.end_seconds, span, step, _NO_SAMPLES)


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
_NOTHING_READ = (-1, 0)


def _samples(plan: Plan | None, span: Span) -> SampleRange:
    if plan is None or span.micro_batch < 0 or span.kind == "optimizer":
        return _NO_SAMPLES
    stage = plan.stages[span.stage]
    replica = stage.replica_of(span.device)
    index = span.micro_batch % plan.micro_batches(span.stage)  # micro-batches count on through a segment
    return sample_range(plan.batch_size, stage.micro_batch, stage.degree, index, replica)
