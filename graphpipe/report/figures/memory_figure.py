"""The figures of memory: each device over time, each stage by kind of tensor, and memory against step time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from graphpipe.planners.improve.memory_curve import CurvePoint
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import between_halves, stage_memory
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.palette import HUES
from graphpipe.trace import MemorySample, Trace
from graphpipe.units import byte_unit, format_bytes, format_seconds

MOST_POINTS = 2_000
"""The most points of one device's curve."""
_SHORT = 2.5
"""A figure begins with the bars alone if capacities are so many times as long."""
_ByDevice = Mapping[int, Sequence[MemorySample]]
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "recomputed", "temporaries")
_RARE = ("recomputed", "temporaries")
"""Parts that are shown only if a stage has bytes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """The peak memory of one device of a stage, in bytes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Bytes that the stage's operators keep for the backward, for the samples that it holds at the same time."""
    buffers: float
    """Bytes of tensors received from other stages, kept until the backward."""
    recomputed: float
    """Bytes that a backward recomputes, of one micro-batch."""
    temporaries: float
    """Bytes that an operator needs only while it runs; 0 if the costs were not profiled."""


def stage_bytes(plan: Plan, stage: int, predicted: Trace | None = None) -> StageBytes:
    """Return the bytes of one device of a stage by kind, from the plan's cost model.

    Args:
        plan: whose stage it is.
        stage: its number.
        predicted: the step, which shows how many samples the device holds at the same time. None: as many as the plan
            allows in flight, of which the schedule may use fewer.
    """
    model, it = plan.costs_of(stage), plan.stages[stage]
    weights = model.parameter_bytes.weights(it.ops)
    weights *= 1 + 1 / it.degree if it.state == "all" and it.degree > 1 else 1  # a shard, and the gathered weights
    trainable = model.parameter_bytes.gradients(it.ops)
    if it.state == "layers" and it.degree > 1:  # shards, and what is gathered counts as weights
        slots = model.op_bytes.slots_per_byte * trainable / it.degree
        trainable /= it.degree
        weights = max(0.0, stage_memory(plan.cost_model, it).state - slots - trainable)
    memory = stage_memory(plan.cost_model, it)
    beside = max(0.0, memory.state - weights)
    samples = it.in_flight / it.degree if predicted is None else most_samples(plan, stage, predicted)
    return StageBytes(
        weights=weights,
        gradients=min(trainable, beside),
        optimizer=max(0.0, beside - trainable),
        activations=memory.saved * samples + min(memory.offloaded * samples, memory.moving),
        buffers=memory.received * samples,
        recomputed=memory.recomputed,
        temporaries=memory.temporary,
    )


def thin(samples: Sequence[MemorySample], most: int = MOST_POINTS) -> list[MemorySample]:
    """Return at most `most` samples of one device: the lowest and the highest of every bucket of time."""
    if len(samples) <= most:
        return list(samples)
    size = -(-2 * len(samples) // most)
    kept: list[MemorySample] = []
    for at in range(0, len(samples), size):
        bucket = samples[at : at + size]
        ends = {min(bucket, key=lambda one: one.bytes), max(bucket, key=lambda one: one.bytes)}
        kept += sorted(ends, key=lambda one: one.seconds)
    return kept


def memory_figure(subject: Subject) -> Figure:
    """Return the bytes of every device over time. If there is a plan, also the memory limit of its devices."""
    figure = go.Figure()
    seconds = subject.step_seconds
    peaks = {trace.source: max(trace.peak_bytes) for trace in subject.traces}
    peak = peaks.get("simulated", max(peaks.values(), default=0.0))
    unit, size = byte_unit(peak)
    for trace in subject.traces:
        add = _add_curves if trace.source == "simulated" else _add_peaks
        add(figure, trace, _by_device(trace), unit, size)
    limits = sorted(_limits(subject.plan)) if subject.plan else []
    for limit in limits:
        figure.add_scatter(
            x=[0.0, seconds],
            y=[limit / size] * 2,
            mode="lines",
            line={"dash": "dash", "color": "#d62728"},
            name=f"limit {format_bytes(limit)}",
        )
    # A limit far above would flatten all curves, and so would a process on a CPU. A double click shows them.
    near = [each for each in (*limits, *peaks.values()) if each <= 2.5 * peak]
    figure.update_yaxes(range=[0, 1.08 * max([peak, *near]) / size], title=unit, rangemode="tozero")
    figure.update_xaxes(range=[0, seconds], ticksuffix="s", tickformat=".3~s")
    figure.update_layout(dragmode="zoom", showlegend=sum(len(trace.used_devices) for trace in subject.traces) <= 16)
    return Figure(figure=figure, height=340)


def most_samples(plan: Plan, stage: int, predicted: Trace) -> float:
    """Return the most samples that one device of a stage holds at the same time in a step.

    The first half of a split backward frees the part of a sample that the second half does not need, and leaves
    gradients to it.
    """
    here = plan.stages[stage]
    kept = between_halves(plan.cost_model, here).share
    freed = {"F": 0.0, "B": 1.0, "I": 1.0 - kept, "W": kept}
    changes: list[tuple[float, float]] = []
    for span in predicted.spans:
        if span.stage == stage and span.device == here.devices[0] and span.kind in freed:
            changes.append((span.start_seconds, 1.0) if span.kind == "F" else (span.end_seconds, -freed[span.kind]))
    # What a task frees is free before the next one starts.
    held = accumulate((change for _, change in sorted(changes)), initial=0.0)
    return max(held) * here.micro_batch / here.degree


def stage_bytes_figure(plan: Plan, predicted: Trace | None = None) -> Figure:
    """Return a bar per stage: the bytes of one of its devices by kind, and marks at its capacity."""
    bars = [stage_bytes(plan, stage, predicted) for stage in range(len(plan.stages))]
    names = [stage.name for stage in plan.stages]
    unit, size = byte_unit(max(sum(getattr(bar, part) for part in PARTS) for bar in bars))
    figure = go.Figure()
    for number, part in enumerate(PARTS):
        amounts = [getattr(bar, part) for bar in bars]
        if part in _RARE and not any(amounts):
            continue
        figure.add_bar(
            y=names,
            x=[amount / size for amount in amounts],
            orientation="h",
            name=part,
            marker={"color": f"#{HUES[number]}"},
            hovertext=[f"{part}: {format_bytes(amount)}" for amount in amounts],
            hovertemplate="%{y}, %{hovertext}<extra></extra>",
        )
    capacities = [plan.cluster.type_of(stage.devices[0]).memory_bytes for stage in plan.stages]
    most = max(sum(getattr(bar, part) for part in PARTS) for bar in bars)
    add_capacities(figure, names, [capacity / size for capacity in capacities], unit)
    ranges = zoomed(figure, most / size, max(capacities) / size)
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_xaxes(title=f"{unit} per device", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category", fixedrange=True)
    return Figure(figure=figure, height=130 + 26 * len(names), extra=ranges)


def add_capacities(figure: go.Figure, rows: Sequence[str], capacities: Sequence[float], unit: str) -> None:
    """Add a red mark at the capacity of the device of each row, in a unit of bytes."""
    figure.add_scatter(
        y=rows,
        x=capacities,
        mode="markers",
        marker={"symbol": "line-ns", "size": 15, "line": {"width": 3, "color": "#d62728"}},
        name="capacity",
        hovertemplate=f"capacity: %{{x:.3g}} {unit}<extra></extra>",
    )


def zoomed(figure: go.Figure, bars: float, capacity: float) -> dict[str, Any]:
    """Let a figure of horizontal bars begin with the bars alone if they are short, and return what the page offers.

    Args:
        figure: the figure.
        bars: the length of the longest bar, in the unit of the axis.
        capacity: the largest capacity, in the same unit.
    """
    near, far = [0.0, 1.12 * bars], [0.0, 1.05 * max(bars, capacity)]
    figure.update_xaxes(range=near if capacity > _SHORT * bars else far)
    return {"ranges": {"Bars": near, "Bars and capacities": far}}


def _add_curves(figure: go.Figure, trace: Trace, by_device: _ByDevice, unit: str, size: float) -> None:
    for number, (device, samples) in enumerate(by_device.items()):
        some = thin(samples)
        figure.add_scatter(
            x=[*(sample.seconds for sample in some), trace.step_seconds],
            y=[*(sample.bytes / size for sample in some), some[-1].bytes / size],
            mode="lines",
            line={"shape": "hv", "width": 1.6, "color": f"#{HUES[number % len(HUES)]}"},
            name=trace.device_names[device],
            hovertemplate=f"%{{fullData.name}}: %{{y:.3g}} {unit} at %{{x:.4s}}s<extra></extra>",
        )


def _add_peaks(figure: go.Figure, trace: Trace, by_device: _ByDevice, unit: str, size: float) -> None:
    # A run measures the peak but not its time, so the mark stands at the end of the step.
    peaks = {device: max(sample.bytes for sample in samples) for device, samples in by_device.items()}
    names = [f"{trace.device_names[device]}: {format_bytes(peak)}" for device, peak in peaks.items()]
    figure.add_scatter(
        x=[trace.step_seconds] * len(peaks),
        y=[peak / size for peak in peaks.values()],
        mode="markers",
        marker={"size": 9, "symbol": "diamond-open", "color": "#d62728", "line": {"width": 2}},
        cliponaxis=False,
        name=f"{trace.source} peaks",
        hovertext=names,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _by_device(trace: Trace) -> dict[int, list[MemorySample]]:
    samples: dict[int, list[MemorySample]] = {}
    for sample in trace.memory:
        samples.setdefault(sample.device, []).append(sample)
    return samples


def _limits(plan: Plan) -> set[float]:
    return {plan.cluster.type_of(device).memory_bytes for device in plan.used_devices}


def memory_curve_figure(points: Sequence[CurvePoint], memory_bytes: float) -> Figure:
    """Return the figure, with a vertical line at the memory of the smallest device."""
    unit, size = byte_unit(max(point.memory_bytes for point in points))
    figure = go.Figure()
    figure.add_scatter(
        x=[point.memory_bytes / size for point in points],
        y=[point.step_seconds * 1e3 for point in points],
        mode="lines+markers",
        line={"color": f"#{HUES[0]}", "shape": "hv"},
        hovertext=[f"{format_bytes(it.memory_bytes)}, step {format_seconds(it.step_seconds)}" for it in points],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    if memory_bytes <= 1.5 * max(point.memory_bytes for point in points):
        figure.add_vline(x=memory_bytes / size, line={"color": "red", "dash": "dot"})
    figure.update_layout(showlegend=False)
    figure.update_xaxes(title=f"{unit} on the fullest device, red: its memory")
    figure.update_yaxes(title="step, ms", rangemode="tozero")
    return Figure(figure=figure, height=320)
