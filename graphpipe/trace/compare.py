"""Comparison of a predicted with a measured trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from graphpipe.errors import InvalidInput
from graphpipe.trace.span import SpanKind
from graphpipe.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Seconds of one kind of work of one stage in both traces: means over micro-batches and replicas."""

    stage: int
    kind: SpanKind
    count: int
    """Number of spans in the measured trace."""
    predicted_seconds: float
    measured_seconds: float

    @property
    def total_seconds(self) -> float:
        """Measured minus predicted, over all measured spans."""
        return self.count * (self.measured_seconds - self.predicted_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two traces of one plan."""

    predicted_step_seconds: float
    measured_step_seconds: float
    differences: tuple[Difference, ...]
    """The differences by kind of work, the largest absolute `total_seconds` first. A kind that only one trace recorded
    is left out."""

    @property
    def step_error(self) -> float:
        """Relative error of the prediction: 0.1 if it is 10 % too long, -0.1 if it is 10 % too short."""
        return self.predicted_step_seconds / self.measured_step_seconds - 1.0 if self.measured_step_seconds else 0.0


def settled_seconds(steps: Sequence[float]) -> float:
    """Return the median seconds of the steps of a run without its first ones, which warm up: ten, or a quarter."""
    return median(steps[min(10, len(steps) // 4) :])


def compare(predicted: Trace, measured: Trace) -> Comparison:
    """Return how a predicted trace differs from a measured (or emulated) one.

    Raises:
        InvalidInput: the traces are of different plans.
    """
    if predicted.plan_fingerprint != measured.plan_fingerprint:
        raise InvalidInput(
            f"the predicted trace is of plan {predicted.plan_fingerprint[:12]}, but "
            f"the measured one of plan {measured.plan_fingerprint[:12]}",
            remedy="Simulate the plan that was run.",
        )
    expected, actual = _durations(predicted), _durations(measured)
    differences = [
        Difference(
            stage=stage,
            kind=kind,
            count=len(actual[stage, kind]),
            predicted_seconds=fmean(expected[stage, kind]),
            measured_seconds=fmean(actual[stage, kind]),
        )
        for stage, kind in sorted(expected.keys() & actual.keys())
    ]
    return Comparison(
        predicted_step_seconds=predicted.step_seconds,
        measured_step_seconds=measured.step_seconds,
        differences=tuple(sorted(differences, key=lambda one: -abs(one.total_seconds))),
    )


def _durations(trace: Trace) -> Mapping[tuple[int, SpanKind], list[float]]:
    durations: dict[tuple[int, SpanKind], list[float]] = {}
    for span in trace.spans:
        durations.setdefault((span.stage, span.kind), []).append(span.end_seconds - span.start_seconds)
    return durations
