"""Subjects of reports for tests: small ones, and one with a large trace."""

from dataclasses import replace

from builders import Part, make_plan

from graphpipe.report import Outcome, summarise
from graphpipe.report.content.subject import Subject
from graphpipe.simulator import predict
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import MemorySample, Span, Trace
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics
from graphpipe.training.run_folder.metrics_log import StepMetrics

# Two branches and their join, which runs on two devices. One sample on one device takes 1 s forward and 2 s backward.
PLAN = make_plan(
    [
        Part(micro_batch=2, parameter_bytes=64.0, saved_bytes=3.0),
        Part(micro_batch=2, saved_bytes=1.0),
        Part(micro_batch=2, degree=2, parameter_bytes=8.0),
    ],
    [(0, 2, 4.0), (1, 2, 0.0)],
    batch_size=8,
)
PREDICTED = simulate(PLAN)


def slower(trace: Trace, factor: float) -> Trace:
    """Return a measured trace that is `factor` times as long as the predicted one. Its memory has only peaks."""
    spans = tuple(
        replace(span, start_seconds=span.start_seconds * factor, end_seconds=span.end_seconds * factor)
        for span in trace.spans
    )
    peaks = tuple(
        MemorySample(device=device, seconds=trace.step_seconds * factor, bytes=100.0) for device in trace.used_devices
    )
    step = trace.step_seconds * factor
    return replace(trace, source="measured", spans=spans, memory=peaks, step_seconds=step)


def whole_subject() -> Subject:
    """Return a subject with every part."""
    best = summarise(PLAN, predict(PLAN))
    return Subject(
        title="test <on> test",
        plan=PLAN,
        predicted=PREDICTED,
        measured=slower(PREDICTED, 1.25),
        steps=tuple(StepMetrics(step=number, loss=4.0 / number, seconds=0.5) for number in range(1, 31)),
        evaluations=(
            EvaluationMetrics(step=10, loss=0.5, metrics={"f1": 0.25}),
            EvaluationMetrics(step=30, loss=0.375, metrics={"f1": 0.75}),
        ),
        planners=(
            Outcome(planner="graphpipe", status="ok", summary=best),
            Outcome(planner="spp", status="infeasible", reason="stage s0 lacks 3 bytes"),
        ),
        settings={"task": "digits.py:task", "train": {"batch_size": 8, "clip_norm": None}},
        versions={"python": "3.11"},
    )


def large_trace(devices: int, micro_batches: int) -> Trace:
    """Return a trace of `2 * devices * micro_batches` tasks with a bubble after every seventh micro-batch."""
    spans: list[Span] = []
    for device in range(devices):
        now = device * 1e-3
        for number in range(micro_batches):
            for kind, seconds in (("F", 1e-3), ("B", 2e-3)):
                spans.append(
                    Span(
                        device=device,
                        kind=kind,  # type: ignore[arg-type]
                        stage=device,
                        micro_batch=number,
                        start_seconds=now,
                        end_seconds=now + seconds,
                    )
                )
                now += seconds
            now += 5e-4 if number % 7 == 6 else 0.0
    return Trace(
        source="simulated",
        plan_fingerprint="0" * 64,
        batch_size=micro_batches,
        device_names=tuple(f"d{device}" for device in range(devices)),
        used_devices=tuple(range(devices)),
        step_seconds=max(span.end_seconds for span in spans),
        spans=tuple(spans),
    )
