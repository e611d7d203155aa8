"""The costs of a placed plan by what placing has measured, so that its prediction is of the backends that run."""

from collections.abc import Sequence
from dataclasses import replace

from graphpipe.plans import Plan
from graphpipe.profiler.placement.place import StagePlacement
from graphpipe.simulator import predict


def with_measured_costs(plan: Plan, placed: Sequence[StagePlacement]) -> Plan:
    """Return a placed plan whose forwards take what was measured, with a prediction by them.

    All operators of a stage get faster or slower by one factor, so that a micro-batch of the stage takes the measured
    seconds. A plan for other devices than the processors of this machine keeps its costs.

    Args:
        plan: for inference, with the regions of `placed`.
        placed: of each of its stages, in order, measured on this machine's processors.
    """
    if not plan.cluster.on_processors:
        return plan
    factors: dict[tuple[str, str], float] = {}
    for stage, found in zip(plan.stages, placed, strict=True):
        device = stage.devices[0]
        predicted = plan.cost_model.task_seconds(stage.ops, device, stage.micro_batch / stage.degree).forward
        predicted -= plan.costs.task_overhead_seconds
        if predicted > 0:
            factor = found.seconds[found.chosen] / predicted
            factors |= {(op, plan.cluster.type_of(each).name): factor for op in stage.ops for each in stage.devices}
    rows = tuple(row.times(factors.get((row.op, row.device_type), 1.0)) for row in plan.costs.rows)
    changed = replace(plan, costs=replace(plan.costs, rows=rows), prediction=None)
    return replace(changed, prediction=predict(changed))
