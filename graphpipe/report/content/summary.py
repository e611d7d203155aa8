"""A plan in a few figures: its planner, its shape, and its predicted step."""

from dataclasses import dataclass
from typing import Literal

from graphpipe.planners.lower_bound.lower_bound import bottleneck_gap_percent, gap_percent, plans_of_gap
from graphpipe.plans import Plan, Prediction
from graphpipe.plans.device_memory import BesideStages, beside_stages, versions_bytes
from graphpipe.plans.estimates import period_seconds
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.report.content.wording import gap_words
from graphpipe.schedule.segments.planned_versions import delays
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
    """By how many percent the step exceeds a lower bound on the steps of other plans. Without a flush, by how many the
    slowest device's work does, for these micro-batch sizes. The bound covers plans that split the same operators, share
    devices only if this plan does, and shard state only if it does."""
    gap_covers: str
    """Which plans this bound covers, in words, such as `every plan`."""
    peak_bytes: tuple[float, ...]
    """The most bytes in use on each device of the cluster."""
    unused_devices: tuple[str, ...]
    split_ops: tuple[str, ...]
    """Operators that the plan splits."""
    weights: WeightPolicy = "flush"
    predictor: Predictor = ""
    steady_seconds: float | None = None
    """Seconds from one mini-batch to the next in the long run, without a flush. Then `samples_per_second`, the bubble
    and the peak are those of the steady state, and `step_seconds` is the step of the same stages with a flush."""
    delay_updates: tuple[int, ...] = ()
    """The most updates between the weights that a micro-batch reads and those that it updates, by stage, without a
    flush."""
    versions: tuple[int, ...] = ()
    """The most versions of its weights that each device of a stage holds, by stage, without a flush."""
    versions_bytes: float = 0.0
    """Bytes of all versions but the newest, on the device where they take most."""
    beside_stages: BesideStages | None = None
    """Bytes that the device holds that has most besides its stages; None if the cluster does not say."""
    trains: bool = True
    """Whether the plan trains. For inference, `samples_per_second` is that of a full pipeline, and `step_seconds` the
    time from an empty pipeline to the last answer of a mini-batch."""

    @property
    def mini_batch_seconds(self) -> float:
        """Seconds per mini-batch in a long training."""
        return self.step_seconds if self.steady_seconds is None else self.steady_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one planner."""

    planner: str
    status: Literal["ok", "infeasible", "timeout", "failed"]
    summary: Summary | None = None
    """The summary of the plan; None unless the status is `ok`."""
    reason: str = ""
    """Why there is no plan."""
    weights: WeightPolicy = "flush"


def summarise(plan: Plan, prediction: Prediction) -> Summary:
    """Return the figures of a plan and its prediction."""
    used = set(plan.used_devices)
    # Windows of inference follow each other without a pause, as mini-batches do without a flush.
    seconds = prediction.mini_batch_seconds if plan.trains else period_seconds(plan)
    steady = prediction.steady_seconds is not None
    return Summary(
        planner=plan.planner,
        search_seconds=plan.search_seconds,
        stages=len(plan.stages),
        depth=plan.depth,
        batch_size=plan.batch_size,
        micro_batch=min(stage.micro_batch for stage in plan.stages),
        step_seconds=prediction.step_seconds,
        samples_per_second=plan.batch_size / seconds if seconds else 0.0,
        bubble_fraction=prediction.bubble_fraction,
        gap_percent=bottleneck_gap_percent(plan) if steady else gap_percent(plan, prediction),
        gap_covers=plans_of_gap(plan),
        peak_bytes=prediction.peak_bytes,
        unused_devices=tuple(device.name for number, device in enumerate(plan.cluster.devices) if number not in used),
        split_ops=tuple(split.op for split in plan.graph.origin.split_ops) if plan.graph.origin else (),
        weights=plan.weights,
        predictor=plan.predictor,
        steady_seconds=prediction.steady_seconds,
        delay_updates=delays(plan) if steady else (),
        versions=tuple(stage.versions for stage in plan.stages) if steady else (),
        versions_bytes=_versions_bytes(plan) if steady else 0.0,
        beside_stages=_most_beside(plan),
        trains=plan.trains,
    )


def _most_beside(plan: Plan) -> BesideStages | None:
    most = max(beside_stages(plan).values(), key=lambda held: held.total)
    return most if most.total else None


def _versions_bytes(plan: Plan) -> float:
    held = dict.fromkeys(plan.used_devices, 0.0)
    for stage in plan.stages:
        for device in stage.devices:
            held[device] += versions_bytes(plan.cost_model, stage)
    return max(held.values())


def summary_lines(summary: Summary) -> list[str]:
    """Return a few sentences: the figures, what the weight policy costs, unused devices, operators that are split."""
    stages = "1 stage" if summary.stages == 1 else f"{summary.stages} stages"
    lines = [
        f"planner {summary.planner}: {stages}, depth {summary.depth}, micro-batch {summary.micro_batch} "
        f"of {summary.batch_size}; {_speed(summary)}, "
        f"peak {format_bytes(max(summary.peak_bytes))} per device; searched {format_seconds(summary.search_seconds)}"
    ]
    if summary.steady_seconds is not None:
        lines += policy_lines(summary)
    elif summary.trains:
        lines.append(f"{gap_words(summary.gap_percent)} a lower bound on {summary.gap_covers}")
    if (held := summary.beside_stages) is not None:
        parts = {
            "context": held.context,
            "workspaces": held.workspaces,
            "communicators": held.communicators,
            "reserved by the allocator": held.reserved,
        }
        words = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items() if count)
        lines.append(f"besides its stages a device holds up to {format_bytes(held.total)}: {words}")
    if summary.unused_devices:
        names, count = ", ".join(summary.unused_devices[:4]), len(summary.unused_devices)
        more = f" and {count - 4} more" if count > 4 else ""
        devices = "1 device is" if count == 1 else f"{count} devices are"
        lines.append(f"{devices} left unused: {names}{more}")
    if summary.split_ops:
        lines.append(f"operators that are split: {', '.join(summary.split_ops)}")
    return lines


def _speed(summary: Summary) -> str:
    rate = f"{summary.samples_per_second:,.1f} samples/s"
    if not summary.trains:
        return f"{rate} in a full pipeline, latency {format_seconds(summary.step_seconds)} per mini-batch"
    step = f"step {format_seconds(summary.step_seconds)}"
    if summary.steady_seconds is not None:
        step = f"a mini-batch every {format_seconds(summary.steady_seconds)} in the steady state"
    return f"{step}, {rate}, bubble {summary.bubble_fraction:.1%}"


def policy_lines(summary: Summary) -> list[str]:
    """Return what a plan that does not flush gains and gives up, in two sentences."""
    late, versions = max(summary.delay_updates), max(summary.versions)
    updates = "1 update" if late == 1 else f"{late} updates"
    held = "1 version" if versions == 1 else f"up to {versions} versions"
    by_stage = ", ".join(map(str, summary.delay_updates))
    bridged = f", which {summary.predictor} predicts ahead" if summary.predictor else ""
    return [
        f"weights {summary.weights}: a micro-batch reads weights that are up to {updates} older than those that its "
        f"gradient changes{bridged} (by stage: {by_stage}); a device holds {held} of a stage's weights, "
        f"{format_bytes(summary.versions_bytes)} more than one",
        f"with a flush, which changes nothing about training, a step of these stages takes "
        f"{format_seconds(summary.step_seconds)}",
    ]
