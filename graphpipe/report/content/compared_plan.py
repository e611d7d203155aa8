"""Plans that are compared: each with a name, and what differs between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.report.content.device_groups import device_groups
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import source_word
from graphpipe.trace import Trace
from graphpipe.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlan:
    """One of several plans: its name, and its plan and predicted step, perhaps with a rehearsed or measured one.

    Raises:
        InvalidInput: the plan or its predicted step is missing.
    """

    name: str
    """A short name, because it stands before the name of each row."""
    subject: Subject

    def __post_init__(self) -> None:
        if self.subject.plan is None or self.subject.predicted is None:
            raise InvalidInput("has no plan", where=self.name, remedy="To compare, give the plan of every trace.")

    @property
    def plan(self) -> Plan:
        """The plan."""
        assert self.subject.plan is not None
        return self.subject.plan

    @property
    def predicted(self) -> Trace:
        """The step as the simulator predicts it."""
        assert self.subject.predicted is not None
        return self.subject.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeak:
    """The simulated peak of the devices that host the same stages."""

    plan: str
    name: str
    """The names of the device's stages."""
    bytes: float
    capacity: float


def device_peaks(compared: Sequence[ComparedPlan]) -> list[DevicePeak]:
    """Return the peak of every group of devices of every plan. Of a group, the fullest device counts."""
    return [
        DevicePeak(
            plan=plan.name,
            name=group.name,
            bytes=max(plan.predicted.peak_bytes[device] for device in group.devices),
            capacity=min(plan.plan.cluster.type_of(device).memory_bytes for device in group.devices),
        )
        for plan in compared
        for group in device_groups(plan.plan)
    ]


def throughputs(compared: Sequence[ComparedPlan]) -> list[tuple[str, list[float]]]:
    """Return samples per second of every plan by kind of step: predicted, then rehearsed or measured if all have it."""
    kinds = [("predicted", [plan.predicted.samples_per_second for plan in compared])]
    run = [plan.subject.measured for plan in compared]
    words = {source_word(trace.source) for trace in run if trace is not None}
    if all(run) and len(words) == 1:
        kinds.append((words.pop(), [trace.samples_per_second for trace in run if trace is not None]))
    return kinds


def larger_bubble(compared: Sequence[ComparedPlan]) -> str:
    """Return why the fastest plan has a larger bubble than another one; empty if it has not."""
    fast = max(compared, key=lambda plan: plan.predicted.samples_per_second)
    others = [plan for plan in compared if plan.predicted.bubble_fraction < fast.predicted.bubble_fraction]
    if not others:
        return ""
    slow = min(others, key=lambda plan: plan.predicted.bubble_fraction)
    words: list[str] = []
    for plan in (fast, slow):
        trace = plan.predicted
        busy, whole = sum(trace.busy_seconds.values()), trace.step_seconds * len(trace.used_devices)
        words.append(f"compute for {format_seconds(busy)} and wait for {format_seconds(whole - busy)}")
    return (
        f"{fast.name} is faster although its bubble is larger, {fast.predicted.bubble_fraction:.1%} against "
        f"{slow.predicted.bubble_fraction:.1%} of {slow.name}. A bubble is a share of the time of the devices in use: "
        f"those of {fast.name} {words[0]}, those of {slow.name} {words[1]}, all of them together."
    )


def properties(plan: ComparedPlan) -> dict[str, str]:
    """Return what distinguishes one plan from another, in words, by the name of the property."""
    it, trace = plan.plan, plan.predicted
    fullest = max(it.used_devices, key=lambda device: trace.peak_bytes[device])
    capacity = it.cluster.type_of(fullest).memory_bytes
    sizes = sorted({stage.micro_batch for stage in it.stages})
    words = {
        "model": it.graph.name,
        "cluster": it.cluster.name,
        "mini-batch": f"{it.batch_size:,} samples",
        "planner": it.planner,
        "schedule": it.schedule,
        "stages": str(len(it.stages)),
        "depth": str(it.depth),
        "devices in use": f"{len(it.used_devices)} of {len(it.cluster.devices)}",
        "micro-batch": " and ".join(map(str, sizes)),
        "most samples in flight": str(max(stage.in_flight for stage in it.stages)),
        "step, predicted": format_seconds(trace.step_seconds),
        "bubble, predicted": f"{trace.bubble_fraction:.1%}",
        "highest peak memory, predicted": f"{format_bytes(trace.peak_bytes[fullest])} of {format_bytes(capacity)}",
        "sent between stages per sample": format_bytes(sum(it.sent_bytes(at) for at in range(len(it.edges)))),
    }
    if (measured := plan.subject.measured) is not None:
        word = source_word(measured.source)
        words[f"step, {word}"] = format_seconds(measured.step_seconds)
        words[f"bubble, {word}"] = f"{measured.bubble_fraction:.1%}"
    return words
