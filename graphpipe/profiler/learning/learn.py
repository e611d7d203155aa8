"""Corrected costs from a plan and a measured step of it.

A trace has the seconds of a stage's tasks, and not of each operator. So all operators of a stage get slower or faster
by one factor for each pass, on each type of device. What the runtime adds to a task stays as it was profiled, unless
more lies between two tasks. What the simulator adds to a task, such as for ranks that share a processor, stays too: the
factor is between both traces. What is then left of a step, by its median seconds, is learned as seconds of every step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, median

from graphpipe.costs import CostTable
from graphpipe.costs.op_cost import Halves, OpCost
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan, Stage
from graphpipe.profiler.learning.learned import LearnedCosts, LearnedPass, MeasuredRun, Pass
from graphpipe.profiler.learning.task_gaps import task_gaps
from graphpipe.simulator.predicted_step import step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import SpanKind, Trace

_Seconds = Mapping[SpanKind, Sequence[float]]
_SHORTEST = 1e-9
"""Seconds. A pass that is predicted or measured as shorter has nothing to learn from."""


def learn(plan: Plan, measured: Trace, seconds: float | None = None) -> LearnedCosts:
    """Return the costs of a plan, corrected to predict a measured step of it as it was measured.

    Stages whose replicas several devices share, and those that gather their weights layer by layer, keep their costs:
    their tasks wait for messages inside.

    Args:
        plan: that was run.
        measured: a typical step.
        seconds: the median of all steps; None teaches nothing of what a step takes besides its tasks.

    Raises:
        InvalidInput: the trace is of another plan.
    """
    return learn_from([MeasuredRun(plan=plan, step=measured, seconds=seconds)], plan.costs)


def learn_from(runs: Sequence[MeasuredRun], table: CostTable) -> LearnedCosts:
    """Return costs, corrected by measured steps of several plans of one model.

    An operator's factor is the geometric mean of those of the plans. Parts of operators that a plan splits are not in
    the costs of the whole graph, and teach nothing. What tasks, messages and updates leave of a step is learned last.

    Args:
        runs: plans, with a measured step of each.
        table: the costs to correct. Plans that split operators were made with these.

    Raises:
        InvalidInput: a trace is of another plan.
    """
    for run in runs:
        if run.step.plan_fingerprint != run.plan.fingerprint:
            raise InvalidInput(
                f"the measured step is of plan {run.step.plan_fingerprint[:12]}, but the costs of plan "
                f"{run.plan.fingerprint[:12]} are to be corrected",
                remedy="Give the plan that was run.",
            )
    gaps = [gap for run in runs for gap in task_gaps(simulate(_with_costs(run.plan, table)), run.step)]
    gap = median(gaps) if gaps else 0.0
    table = replace(table, task_overhead_seconds=max(table.task_overhead_seconds, gap))
    passes: list[LearnedPass] = []
    optimizer: list[float] = []
    for run in runs:
        plan = _with_costs(run.plan, table)
        predicted = simulate(plan)
        for at, stage in enumerate(plan.stages):
            if stage.tensor == 1 and (stage.state != "layers" or stage.degree == 1):
                passes += _passes(plan, at, stage, predicted, run.step, gap)
        optimizer.append(_optimizer_seconds_per_byte(plan, predicted, run.step))
    table = _corrected(table, passes)
    if optimizer:
        table = replace(table, optimizer_seconds_per_parameter_byte=fmean(optimizer))
    left = _left_of_steps(runs, table)
    if left:
        table = replace(table, step_overhead_seconds=max(0.0, fmean(left)))
    return LearnedCosts(costs=table, passes=tuple(passes), left_of_steps=left)


def _corrected(table: CostTable, passes: Sequence[LearnedPass]) -> CostTable:
    """Return the table with each pass of an operator by its factors' geometric mean."""
    factors: dict[tuple[str, str], dict[Pass, list[float]]] = {}
    for each in passes:
        for op in each.ops:
            factors.setdefault((op, each.device_type), {}).setdefault(each.what, []).append(each.factor)
    typical: dict[tuple[str, str], dict[Pass, float]] = {
        row: {what: geometric_mean(found) for what, found in by_pass.items()} for row, by_pass in factors.items()
    }
    return replace(table, rows=tuple(_scaled(row, typical.get((row.op, row.device_type), {})) for row in table.rows))


def _with_costs(plan: Plan, table: CostTable) -> Plan:
    # It may have been made with others. A plan that splits operators keeps its own, which have the parts.
    return plan if _splits(plan, table) else replace(plan, costs=table, prediction=None)


def _left_of_steps(runs: Sequence[MeasuredRun], costs: CostTable) -> tuple[float, ...]:
    """Return the seconds of each run's steps that costs do not tell."""
    costs = replace(costs, step_overhead_seconds=0.0)
    return tuple(
        run.seconds - step_seconds(_with_costs(run.plan, costs))
        for run in runs
        if run.seconds is not None and run.plan.weights == "flush" and not _splits(run.plan, costs)
    )


def _splits(plan: Plan, table: CostTable) -> bool:
    return plan.costs.graph_fingerprint != table.graph_fingerprint


def _passes(plan: Plan, at: int, stage: Stage, predicted: Trace, measured: Trace, gap: float) -> Iterator[LearnedPass]:
    model, overhead = plan.cost_model, plan.costs.task_overhead_seconds
    for kind in dict.fromkeys(plan.cluster.devices[device].type for device in stage.devices):
        devices = [device for device in stage.devices if plan.cluster.devices[device].type == kind]
        expected, found = _seconds_of(predicted, at, devices), _seconds_of(measured, at, devices)
        samples = stage.micro_batch / stage.degree
        plain = model.task_seconds(stage.ops, devices[0], samples)
        whole = model.task_seconds(stage.ops, devices[0], samples, stage.recompute)
        recomputed = whole.input_gradient - plain.input_gradient
        known: tuple[tuple[Pass, SpanKind, float, float], ...] = (
            ("forward", "F", plain.forward - overhead, 0.0),
            ("backward", "B", plain.backward - overhead, recomputed),
            ("input half", "I", plain.input_half - overhead, recomputed),
            ("weight half", "W", plain.weight_half, 0.0),
        )
        forward = 1.0  # the factor of the forward, and so of what is recomputed
        for what, span, seconds, again in known:
            if not (expected.get(span) and found.get(span)) or seconds < _SHORTEST:
                continue
            alone = seconds + again + overhead  # without what the simulator adds
            took = (median(found[span]) + gap) / median(expected[span]) * alone - overhead - again * forward
            if took < _SHORTEST:
                continue
            if what == "forward":
                forward = took / seconds
            yield LearnedPass(
                stage=stage.name,
                ops=stage.ops,
                device_type=kind,
                what=what,
                predicted_seconds=seconds,
                measured_seconds=took,
            )


def _seconds_of(measured: Trace, stage: int, devices: Sequence[int]) -> _Seconds:
    seconds: dict[SpanKind, list[float]] = {}
    for span in measured.spans:
        if span.stage == stage and span.device in devices:
            seconds.setdefault(span.kind, []).append(span.end_seconds - span.start_seconds)
    return seconds


def _scaled(row: OpCost, factors: Mapping[Pass, float]) -> OpCost:
    """Return the costs of an operator, each pass by its factor.

    If only the halves of a backward ran, a whole one gets the factor of each half for its part. If only whole ones ran,
    the halves get the same factor. So do the costs of devices that share the operator.
    """
    if not factors:
        return row
    whole = factors.get("backward")
    input_factor, weight_factor = factors.get("input half", whole or 1.0), factors.get("weight half", whole or 1.0)
    halves = row.halves and Halves(
        input=row.halves.input.times(input_factor), weight=row.halves.weight.times(weight_factor)
    )
    return replace(
        row,
        forward=row.forward.times(factors.get("forward", 1.0)),
        input_gradient=row.input_gradient.times(whole or input_factor),
        weight_gradient=row.weight_gradient.times(whole or weight_factor),
        halves=halves,
        shared=tuple(_scaled(each, factors) for each in row.shared),
    )


def _optimizer_seconds_per_byte(plan: Plan, predicted: Trace, measured: Trace) -> float:
    """Return the seconds of the optimizer per byte of the parameters that a device updates.

    The replicas of a stage gather the weights inside the optimizer's step if they shard its state. This is left out.
    """
    expected, found = _optimizer_seconds(predicted), _optimizer_seconds(measured)
    seconds = updated = 0.0
    for device in expected.keys() & found.keys():
        hosted = [at for at, stage in enumerate(plan.stages) if device in stage.devices]
        alone = sum(map(plan.optimizer_seconds, hosted))
        disturbed = expected[device] / alone if alone >= _SHORTEST else 1.0
        computing = 0.0
        for at in hosted:
            stage, costs = plan.stages[at], plan.costs_of(at)
            computing += costs.optimizer_seconds(stage.ops, stage.state, stage.degree)
            updated += costs.parameter_bytes.updated(stage.ops, stage.state, stage.degree)
        seconds += max(0.0, found[device] / disturbed - (alone - computing))
    return seconds / updated if updated else plan.costs.optimizer_seconds_per_parameter_byte


def _optimizer_seconds(trace: Trace) -> dict[int, float]:
    seconds: dict[int, float] = {}
    for span in trace.spans:
        if span.kind == "optimizer":
            seconds[span.device] = seconds.get(span.device, 0.0) + span.end_seconds - span.start_seconds
    return seconds
