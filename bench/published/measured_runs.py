"""Measured runs of other people's clusters, and what the simulator predicts for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean

from graphpipe.costs import Curve
from graphpipe.errors import InvalidInput
from graphpipe.importers.aceso_files import AcesoFiles, amount, read_rows
from graphpipe.importers.aceso_profile import MIB
from graphpipe.importers.read_aceso import read_aceso
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.simulator import step_seconds

DRAWS = 16
"""Draws of which groups have slow links, if two measurements of their collectives differ."""
OPTIMIZER_SHARE = 18 / 16
"""While Adam updates the weights, it also holds gradients in 32 bits: 18 bytes for each weight, instead of the 16 with
gradients in 16 bits (Megatron, mixed precision)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStage:
    """One stage of a measured step: the mean of its ranks, and the fullest of them."""

    forward_seconds: float
    """Of all micro-batches together, with the collectives of tensor parallelism."""
    backward_seconds: float
    peak_bytes: float
    """The most that torch had allocated."""
    reserved_bytes: float
    """The most that torch had reserved, which includes what its allocator keeps for later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measured step. Of large runs, only some stages may be known."""

    step_seconds: float
    """The mean of the ranks."""
    stages: Mapping[int, MeasuredStage]


def read_run(files: Mapping[tuple[int, int], Path]) -> MeasuredRun:
    """Read the files of a run, one for each stage and rank.

    Raises:
        InvalidInput: a file cannot be read, has not exactly one row, lacks a column, or has a bad number.
    """
    columns = ("time", "forward-compute", "backward-compute", "max_allocated", "max_reserved")
    rows: dict[int, list[list[float]]] = {}
    for (stage, _), path in sorted(files.items()):
        found = list(read_rows(path, columns))
        if len(found) != 1:
            raise InvalidInput(f"has {len(found)} rows, must be 1", where=str(path), remedy="Write one measured step.")
        where, row = found[0]
        rows.setdefault(stage, []).append(
            [amount(row[name], f"{where}, {name}", zero=name not in columns[:1]) for name in columns]
        )
    stages: dict[int, MeasuredStage] = {}
    for stage, each in rows.items():
        _, forward, backward, allocated, reserved = zip(*each, strict=True)
        stages[stage] = MeasuredStage(
            forward_seconds=mean(forward) * 1e-3,
            backward_seconds=mean(backward) * 1e-3,
            peak_bytes=max(allocated) * MIB,
            reserved_bytes=max(reserved) * MIB,
        )
    return MeasuredRun(step_seconds=mean(row[0] for each in rows.values() for row in each) * 1e-3, stages=stages)


def with_measured_compute(plan: Plan, run: MeasuredRun) -> Plan:
    """Return the plan with the measured compute of every stage in place of the costs of its operators."""
    first = {stage.ops[0]: number for number, stage in enumerate(plan.stages)}
    rows = [
        replace(row, forward=Curve(), input_gradient=Curve(), weight_gradient=Curve())
        if row.op not in first
        else replace(
            row,
            forward=_fixed(run.stages[first[row.op]].forward_seconds / plan.micro_batches(first[row.op])),
            input_gradient=_fixed(run.stages[first[row.op]].backward_seconds / plan.micro_batches(first[row.op])),
            weight_gradient=Curve(),
        )
        for row in plan.costs.rows
    ]
    stages = tuple(replace(stage, recompute="none") for stage in plan.stages)  # Measured backwards include it.
    return replace(plan, stages=stages, costs=replace(plan.costs, rows=tuple(rows)))


def _fixed(seconds: float) -> Curve:
    return Curve(lines=((seconds, 0.0),))


def without_messages(plan: Plan) -> Plan:
    """Return the plan without the time of messages between stages, as a formula of 1F1B counts."""
    edges = tuple(replace(edge, bytes_per_sample=0.0) for edge in plan.edges)
    return replace(plan, edges=edges)


def predicted_seconds(files: AcesoFiles, name: str) -> float:
    """Return the predicted step seconds of a plan from its profile.

    If a profile and the times of collectives differ, each group of GPUs has one of the two, drawn with equal odds. The
    prediction is the mean over the draws, which are the same every time.
    """
    slow = step_seconds(read_aceso(files.folder, name))
    plan = read_aceso(files.folder, name, slow_links=())
    if step_seconds(plan) == slow:
        return slow
    random, found = Random(name), list[float]()
    for _ in range(DRAWS):
        drawn = [stage for stage in range(len(plan.stages)) if random.random() < 0.5]
        found.append(step_seconds(read_aceso(files.folder, name, slow_links=drawn)))
    return mean(found)


def predicted_bytes(plan: Plan, stage: int) -> float:
    """Return the most bytes that a GPU of a stage holds: in a backward, or while the optimizer runs."""
    here = plan.stages[stage]
    state = plan.cost_model.parameter_bytes.held(here.ops, here.state, here.degree)
    return max(needed_bytes(plan)[here.devices[0]], OPTIMIZER_SHARE * state)
