"""The panels about a plan: its stages, its operators, and how to reproduce it."""

from collections.abc import Mapping
from typing import Any, cast

from graphpipe.plans import Plan
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import (
    device_names,
    offloaded_names,
    offloads,
    recomputed_names,
    recomputes,
    sharded_name,
    shares_replicas_name,
)
from graphpipe.report.figures.operator_figure import operator_figure
from graphpipe.report.figures.stage_figure import stage_figure
from graphpipe.report.page.html_page import figure, note, table
from graphpipe.report.page.panel import Panel
from graphpipe.units import format_bytes, format_seconds


def _stages(subject: Subject) -> str | None:
    """Return the graph of stages and a table of them."""
    if (plan := subject.plan) is None:
        return None
    headings = ("stage", "devices", "feeds", "operators", "degree", "samples", "in flight", "forward", "backward")
    headings += ("recomputes",) if recomputes(plan) else ()
    headings += ("offloads",) if offloads(plan) else ()
    headings += ("shards",) if plan.shards_state else ()
    headings += ("tensor",) if plan.shares_replicas else ()
    return (
        note(
            "Each box is a stage, and data flows down. Micro is the micro-batch: replicas × samples of each replica. "
            "An arrow shows the bytes that one sample sends forward. Its gradient sends the same number of bytes back."
        )
        + figure("stage-graph", "The graph of stages. The table below has the same data.", stage_figure(plan))
        + table("The stages", headings, [_stage_row(plan, at) for at in range(len(plan.stages))], words=3)
        + note("Forward and backward times are for one micro-batch. Bytes are for one sample." + _memory_note(plan))
    )


def _operators(subject: Subject) -> str | None:
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
        note("Each dot is an operator, grouped by stage. Point at a dot to see its name and size.")
        + figure("operator-graph", "The model's operators, grouped by stage. A list follows.", operator_figure(plan))
        + f"<details><summary>All {len(rows)} operators</summary>{listing}</details>"
    )


def _origin(subject: Subject) -> str:
    """Return everything that a reader needs to reproduce the plan or the run."""
    facts = [["plan hash", subject.plan_hash]]
    if plan := subject.plan:
        facts += [["model", plan.graph.name], ["cluster", plan.cluster.name], ["schedule", plan.schedule]]
        facts += [["planner", plan.planner], ["graph hash", plan.graph.fingerprint]]
        facts += [["cluster hash", plan.cluster.fingerprint]]
    body = table("Plan", ("what", "value"), facts, words=2)
    if subject.settings:
        body += table("Configuration, defaults included", ("setting", "value"), _flat(subject.settings), words=2)
    if subject.versions:
        pairs = [[name, version] for name, version in subject.versions.items()]
        body += table("Software versions on the machine that wrote this report", ("program", "version"), pairs, words=2)
    return body


def _stage_row(plan: Plan, number: int) -> list[str]:
    stage = plan.stages[number]
    seconds = plan.task_seconds(number, stage.devices[0])
    feeds = [edge for edge in plan.edges if edge.source == number]
    sent = [f"{plan.stages[edge.target].name} ({format_bytes(edge.bytes_per_sample)})" for edge in feeds]
    counts = [len(stage.ops), stage.degree, stage.micro_batch, stage.in_flight]
    times = [format_seconds(seconds.forward), format_seconds(seconds.backward)]
    recomputed = [recomputed_names(stage.recompute)] if recomputes(plan) else []
    recomputed += [offloaded_names(plan, stage)] if offloads(plan) else []
    saved = [*recomputed, *([sharded_name(stage.state)] if plan.shards_state else [])]
    saved += [shares_replicas_name(stage)] if plan.shares_replicas else []
    return [stage.name, device_names(plan, stage), "\n".join(sent) or "-", *map(str, counts), *times, *saved]


def _memory_note(plan: Plan) -> str:
    again = " What a stage recomputes is not kept, so its backward takes longer by the forward of that part."
    away = " What a stage offloads rests in the memory of the node, or on a neighbour, between forward and backward."
    shared = " Replicas that shard the optimizer's state each keep and update a part of it."
    ranks = " Under tensor is how many devices share each replica: each computes a part of it, for all of its samples."
    said = {again: recomputes(plan), away: offloads(plan), shared: plan.shards_state, ranks: plan.shares_replicas}
    return "".join(text for text, holds in said.items() if holds)


def _flat(settings: Mapping[str, Any], before: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flat(cast("Mapping[str, Any]", value), f"{before}{name}.")
        else:
            rows.append([f"{before}{name}", "not set" if value is None else str(value)])
    return rows


STAGES = Panel(name="stages", title="Stages", build=_stages)
MODEL = Panel(name="model", title="Model", build=_operators)
ORIGIN = Panel(name="origin", title="Where this comes from", build=_origin)
