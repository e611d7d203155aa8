"""A plan in a few figures: its planner, its shape, and its predicted step."""

from dataclasses import dataclass
from typing import Literal

from graphpipe.planners.lower_bound.lower_bound import bottleneck_gap_percent, gap_percent
from graphpipe.plans import Plan, Prediction
from graphpipe.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a plan, under the names that `--json` prints."""

    planner: str
    search_seconds: float
    stages: int
    """Number of stages."""
    depth: int
    """Stages on the longest path."""
    batch_size: int
    micro_batch: int
    """Samples of the smallest micro-batch of any stage."""
    step_seconds: float
    samples_per_second: float
    bubble_fraction: float
    gap_percent: float
    """By how many percent the step exceeds a lower bound on every plan's step. At 0 the plan is proven optimal.
    The bound covers the plans that split the same operators, and no others."""
    bottleneck_gap_percent: float
    """By how many percent the slowest device's work exceeds a lower bound for these micro-batch sizes."""
    peak_bytes: tuple[float, ...]
    """One per device of the cluster."""
    unused_devices: tuple[str, ...]
    split_ops: tuple[str, ...]
    """Operators that the plan splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one planner."""

    planner: str
    status: Literal["ok", "infeasible", "timeout", "failed"]
    summary: Summary | None = None
    """None unless the status is `ok`."""
    reason: str = ""
    """Why there is no plan."""


def summarise(plan: Plan, prediction: Prediction) -> Summary:
    """Return the figures of a plan and its prediction."""
    used = set(plan.used_devices)
    return Summary(
        planner=plan.planner,
        search_seconds=plan.search_seconds,
        stages=len(plan.stages),
        depth=plan.depth,
        batch_size=plan.batch_size,
        micro_batch=min(stage.micro_batch for stage in plan.stages),
        step_seconds=prediction.step_seconds,
        samples_per_second=plan.batch_size / prediction.step_seconds if prediction.step_seconds else 0.0,
        bubble_fraction=prediction.bubble_fraction,
        gap_percent=gap_percent(plan, prediction),
        bottleneck_gap_percent=bottleneck_gap_percent(plan),
        peak_bytes=prediction.peak_bytes,
        unused_devices=tuple(device.name for number, device in enumerate(plan.cluster.devices) if number not in used),
        split_ops=tuple(split.op for split in plan.graph.origin.split_ops) if plan.graph.origin else (),
    )


def summary_lines(summary: Summary) -> list[str]:
    """Return one to three sentences: the figures, then the unused devices, then the operators that are split."""
    stages = "1 stage" if summary.stages == 1 else f"{summary.stages} stages"
    lines = [
        f"planner {summary.planner}: {stages}, depth {summary.depth}, micro-batch {summary.micro_batch} "
        f"of {summary.batch_size}; step {format_seconds(summary.step_seconds)}, "
        f"{summary.samples_per_second:,.1f} samples/s, bubble {summary.bubble_fraction:.1%}, "
        f"peak {format_bytes(max(summary.peak_bytes))} per device; searched {format_seconds(summary.search_seconds)}"
    ]
    if summary.unused_devices:
        names, count = ", ".join(summary.unused_devices[:4]), len(summary.unused_devices)
        more = f" and {count - 4} more" if count > 4 else ""
        devices = "1 device is" if count == 1 else f"{count} devices are"
        lines.append(f"{devices} left unused: {names}{more}")
    if summary.split_ops:
        lines.append(f"operators that are split: {', '.join(summary.split_ops)}")
    return lines
