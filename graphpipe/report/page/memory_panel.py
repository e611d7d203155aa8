"""The panel about what stages keep, recompute and offload, and how the step depends on the memory."""

from graphpipe.planners.improve.memory_curve import memory_curve
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.report.content.memory_choices import choice_lines, memory_choices
from graphpipe.report.content.phase_memory import phase_memory
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.memory_figure import memory_curve_figure
from graphpipe.report.page.html_page import figure, note, table
from graphpipe.report.page.panel import Panel
from graphpipe.report.tables.memory_curve_table import HEADINGS, curve_rows
from graphpipe.simulator import step_seconds
from graphpipe.simulator.critical_path import overlaps
from graphpipe.units import format_bytes

_FULL = 0.5
"""Share of a device above which its memory matters."""
_PHASES = ("stage", "at start", "in a step", "while saving", "saving in the background")
_MOST_OPS = 256
"""Operators up to which the curve is drawn."""


def _choices(subject: Subject) -> str | None:
    """Return the choices of the plan's stages and its curve; None if memory does not matter."""
    if (plan := subject.plan) is None or not plan.trains or plan.weights != "flush":
        return None
    choices = memory_choices(plan)
    text = "".join(note(line) for line in choice_lines(choices)) if choices else ""
    if _matters(plan):
        text += table("Memory of a replica by phase", _PHASES, _phase_rows(plan))
    if _matters(plan) and len(plan.graph.ops) <= _MOST_OPS and overlaps(plan.cluster):
        points = memory_curve(plan, step_seconds)
        least = min(plan.cluster.type_of(device).memory_bytes for device in plan.used_devices)
        words = "The least memory for each step time of these stages. The table below has the same data."
        if len(points) > 1:
            text += figure("memory-curve", words, memory_curve_figure(points, least))
            text += table("Memory against step time", HEADINGS, curve_rows(points))
    return text or None


def _phase_rows(plan: Plan) -> list[list[str]]:
    return [
        [it.stage, *(format_bytes(count) for count in (it.starting, it.training, it.saving, it.copying))]
        for it in phase_memory(plan)
    ]


def _matters(plan: Plan) -> bool:
    return any(need > _FULL * plan.cluster.type_of(at).memory_bytes for at, need in needed_bytes(plan).items())


CHOICES = Panel(name="memory-choices", title="What is kept", build=_choices)
