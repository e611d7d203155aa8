"""The scaled plan of a rehearsal: the same stages and schedule, with times and bytes that this machine can handle."""

import os
from dataclasses import dataclass, replace

from graphpipe.cluster import Cluster
from graphpipe.cluster.device import Link
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan, StageEdge
from graphpipe.trace import Trace

LEAST_TASK_SECONDS = 10e-3
"""Shorter sleeps are not accurate."""
ACTION_SECONDS = 150e-6
"""Processor time of the runtime for a task or for one end of a transfer."""
LARGEST_LOAD = 0.07
"""Share of this machine's cores that all ranks together may use, so that a rank does not wait for a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a rehearsal changes times and bytes."""

    scale: float = 1.0
    """Factor on the predicted seconds of every task."""
    most_bytes: float = 16 * 1024
    """Larger messages are cut to this size. If the reduced gradients of a stage are larger, those of all stages shrink
    by the same factor. Otherwise ranks would contend for the machine's memory bandwidth."""

    def __post_init__(self) -> None:
        for field in ("scale", "most_bytes"):
            if not 0 < getattr(self, field) < float("inf"):
                raise InvalidInput(f"is {getattr(self, field)}, must be positive and finite", where=field)


def scaled_plan(plan: Plan, limits: Limits, link: Link) -> Plan:
    """Return the plan with times scaled, bytes cut to the limits, and `link` between all its devices.

    Transfers overlap tasks, and every device counts as having its own core, because a sleeping task does not use one.
    """
    shrink = min(1.0, limits.most_bytes / max(1.0, *_gradient_bytes(plan)))
    ops = tuple(replace(op, parameter_bytes=op.parameter_bytes * shrink) for op in plan.graph.ops)
    shared = tuple(replace(parameter, bytes=parameter.bytes * shrink) for parameter in plan.graph.shared)
    graph = replace(plan.graph, ops=ops, shared=shared)
    alike = plan.cluster.with_every_link(lambda _: link)
    cluster: Cluster = replace(alike, pair_links=(), levels=(), overlap=True, cores_per_node=None)
    return replace(
        plan,
        graph=graph,
        cluster=cluster,
        costs=_scaled(plan.costs, limits.scale, shrink, graph.fingerprint),
        edges=_cut_edges(plan, limits.most_bytes),
        prediction=None,
    )


def smallest_feasible_scale(predicted: Trace) -> float:
    """Return the smallest scale, at least 1, at which this machine can keep the predicted times of a step."""
    tasks = [span.end_seconds - span.start_seconds for span in predicted.spans if span.kind in ("F", "B", "I", "W")]
    shortest = min((seconds for seconds in tasks if seconds > 0), default=LEAST_TASK_SECONDS)
    working = len(predicted.spans) * ACTION_SECONDS / (os.cpu_count() or 1)
    return max(1.0, LEAST_TASK_SECONDS / shortest, working / LARGEST_LOAD / predicted.step_seconds)


def changes(plan: Plan, limits: Limits) -> list[str]:
    """Return a sentence for each quantity that the limits cut."""
    sentences: list[str] = []
    cut = [1 for edge, new in zip(plan.edges, _cut_edges(plan, limits.most_bytes), strict=True) if edge != new]
    if cut:
        sentences.append(f"messages on {len(cut)} of {len(plan.edges)} edges are cut to {limits.most_bytes:,.0f} bytes")
    most = max(_gradient_bytes(plan))
    if most > limits.most_bytes:
        sentences.append(f"reduced gradients are cut to 1/{most / limits.most_bytes:,.0f} of their bytes")
    return sentences


def _gradient_bytes(plan: Plan) -> list[float]:
    exchanged = [tied.bytes for tied in plan.tied_gradients]
    return [plan.reduced_bytes(stage) for stage in range(len(plan.stages))] + exchanged


def _cut_edges(plan: Plan, most: float) -> tuple[StageEdge, ...]:
    # A value that several edges carry has the same size on all of them, so joint edges are cut by the same factor.
    cut = [_cut(plan, edge, most) for edge in plan.edges]
    joint = plan.joint_edges.outputs
    together = {*joint, *(other for others in joint.values() for other in others)}
    pairs = list(zip(plan.edges, cut, strict=True))
    factor = min(
        (new.bytes_per_sample / edge.bytes_per_sample for edge, new in (pairs[n] for n in together)), default=1
    )
    return tuple(
        replace(edge, bytes_per_sample=edge.bytes_per_sample * factor) if number in together else new
        for number, (edge, new) in enumerate(pairs)
    )


def _cut(plan: Plan, edge: StageEdge, most: float) -> StageEdge:
    # A message holds at most the rows of one task at either end.
    source, target = plan.stages[edge.source], plan.stages[edge.target]
    rows = min(source.micro_batch // source.degree, target.micro_batch // target.degree)
    return replace(edge, bytes_per_sample=min(edge.bytes_per_sample, most // rows))


def _scaled(costs: CostTable, scale: float, shrink: float, fingerprint: str) -> CostTable:
    return replace(
        costs,
        graph_fingerprint=fingerprint,
        rows=tuple(row.times(scale) for row in costs.rows),
        optimizer_seconds_per_parameter_byte=costs.optimizer_seconds_per_parameter_byte * scale / shrink,
        task_overhead_seconds=costs.task_overhead_seconds * scale,
        step_overhead_seconds=0.0,  # a rehearsal does nothing besides
    )
