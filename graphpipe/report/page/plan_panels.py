"""The panels about a plan: its stages, its operators, and where it comes from."""

from collections.abc import Mapping
from typing import Any, cast

from graphpipe.plans import Plan
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import device_names, recomputed_names, recomputes
from graphpipe.report.figures.operator_figure import operator_figure
from graphpipe.report.figures.stage_figure import stage_figure
from graphpipe.report.page.html_page import figure, note, table
from graphpipe.units import format_bytes, format_seconds


def stages_panel(subject: Subject) -> str | None:
    """Return the graph of stages, and what every stage is."""
    if (plan := subject.plan) is None:
        return None
    headings = ("stage", "devices", "feeds", "operators", "degree", "samples", "in flight", "forward", "backward")
    headings += ("recomputes",) if recomputes(plan) else ()
    return (
        note(
            "A box per stage; data flows down. Micro is the micro-batch: replicas times samples. An arrow tells the "
            "bytes that one sample sends forward; its gradient sends as many back."
        )
        + figure("stage-graph", "The graph of stages; the table below says the same", stage_figure(plan))
        + table("What each stage is", headings, [_stage_row(plan, at) for at in range(len(plan.stages))], words=3)
        + note("Forward and backward are of one micro-batch; bytes are of one sample." + _recompute_note(plan))
    )


def operators_panel(subject: Subject) -> str | None:
    """Return the model's operators, grouped by stage."""
    if (plan := subject.plan) is None:
        return None
    stage_of = {op: stage.name for stage in plan.stages for op in stage.ops}
    rows = [
        [op.name, op.kind, stage_of[op.name], *map(format_bytes, (op.parameter_bytes, op.output_bytes_per_sample))]
        for op in map(plan.graph.__getitem__, plan.graph.order)
    ]
    headings = ("operator", "kind", "stage", "parameters", "out per sample")
    listing = table("Operators in order", headings, rows, words=3)
    return (
        note("A dot per operator, grouped by stage. Point at one for its name and size.")
        + figure("operator-graph", "The model's operators, grouped by stage; a list follows", operator_figure(plan))
        + f"<details><summary>All {len(rows)} operators</summary>{listing}</details>"
    )


def origin_panel(subject: Subject) -> str:
    """Return what a reader needs to make the same again."""
    facts = [["plan hash", subject.plan_hash]]
    if plan := subject.plan:
        facts += [["model", plan.graph.name], ["cluster", plan.cluster.name], ["schedule", plan.schedule]]
        facts += [["planner", plan.planner], ["graph hash", plan.graph.fingerprint]]
        facts += [["cluster hash", plan.cluster.fingerprint]]
    body = table("Plan", ("what", "value"), facts, words=2)
    if subject.settings:
        body += table(
            "Configuration, every default spelled out", ("setting", "value"), _flat(subject.settings), words=2
        )
    if subject.versions:
        pairs = [[name, version] for name, version in subject.versions.items()]
        body += table("Versions where this report was written", ("program", "version"), pairs, words=2)
    return body


def _stage_row(plan: Plan, number: int) -> list[str]:
    stage = plan.stages[number]
    samples = stage.micro_batch / stage.degree
    seconds = plan.cost_model.task_seconds(stage.ops, stage.devices[0], samples, stage.recompute)
    feeds = [edge for edge in plan.edges if edge.source == number]
    sent = [f"{plan.stages[edge.target].name} ({format_bytes(edge.bytes_per_sample)})" for edge in feeds]
    counts = [len(stage.ops), stage.degree, stage.micro_batch, stage.in_flight]
    times = [format_seconds(seconds.forward), format_seconds(seconds.backward)]
    recomputed = [recomputed_names(stage.recompute)] if recomputes(plan) else []
    return [stage.name, device_names(plan, stage), "\n".join(sent) or "-", *map(str, counts), *times, *recomputed]


def _recompute_note(plan: Plan) -> str:
    told = " What a stage recomputes is not kept: its backward takes as much longer as the forward of that took."
    return told if recomputes(plan) else ""


def _flat(settings: Mapping[str, Any], before: str = "") -> list[list[str]]:
    found: list[list[str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += _flat(cast("Mapping[str, Any]", value), f"{before}{name}.")
        else:
            found.append([f"{before}{name}", "not set" if value is None else str(value)])
    return found
