"""The operators of a plan whose costs are less certain than those of others."""

from collections.abc import Iterator

from graphpipe.plans import Plan, Stage

_SHOWN = 4


def doubtful_costs(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each reason to doubt costs, with the operators that it concerns.

    Costs that were computed from FLOPs and bytes lack the FLOPs of operators of other libraries. A curve that was
    fitted to measurements is extrapolated for more samples than the measurements had.
    """
    estimated = {row.op for row in plan.costs.rows if row.source == "analytic"}
    unknown = {op.name: op.work.without_formula for op in plan.graph.ops if op.work.without_formula}
    unknown = {op: names for op, names in unknown.items() if op in estimated}
    if unknown:
        operators = ", ".join(sorted({name for names in unknown.values() for name in names}))
        yield f"the FLOPs of {operators} are not known, so only bytes count in {_some(list(unknown))}"
    for stage in plan.stages:
        samples = stage.micro_batch / stage.degree
        beyond = {op: most for op in stage.ops if (most := _most(plan, stage, op)) < samples}
        if beyond:
            yield (
                f"{stage.name} computes {samples:g} samples at once, and the costs of {_some(list(beyond))} were "
                f"measured with at most {max(beyond.values()):g}"
            )


def _most(plan: Plan, stage: Stage, op: str) -> float:
    rows = [plan.costs.by_op[op, plan.cluster.devices[device].type] for device in stage.devices]
    return min((row.measured_samples[1] for row in rows if row.measured_samples), default=float("inf"))


def _some(ops: list[str]) -> str:
    rest = len(ops) - _SHOWN
    return ", ".join(ops[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
