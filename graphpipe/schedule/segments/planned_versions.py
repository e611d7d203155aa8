"""How many versions of its weights each stage keeps, and how late its gradients are, from samples in flight."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from graphpipe.plans import Plan
from graphpipe.plans.in_flight import delay_of, in_flight_samples, most_in_flight_of, versions_of
from graphpipe.plans.stage import Predictor, WeightPolicy


def delays(plan: Plan) -> tuple[int, ...]:
    """Return, by stage, the most updates between the weights that a micro-batch reads and those that it updates.

    Under `vertical-sync` every stage is as late as the latest. Under `predict` the prediction bridges the delay.
    """
    late = [delay_of(plan.weights, stage.in_flight, stage.micro_batch, plan.batch_size) for stage in plan.stages]
    return (max(late),) * len(late) if plan.weights == "vertical-sync" else tuple(late)


def planned_versions(plan: Plan) -> tuple[int, ...]:
    """Return, by stage, the most versions of its weights that are needed at once.

    PipeDream's stage s keeps w_s + 1 versions if a mini-batch is one micro-batch. In general it is one more than the
    delay. Stages that predict need a copy to return to: two versions at most. Under `moving-average`, late stages hold
    the average and a copy to return to.
    """
    if plan.weights == "predict":
        spectrain, last = plan.predictor == "spectrain", plan.depth - 1
        back = [spectrain and last - after > 1 for after in plan.stages_after]  # it also predicts for the backward
        return tuple(2 if delay or late else 1 for delay, late in zip(delays(plan), back, strict=True))
    return tuple(versions_of(plan.weights, plan.predictor, delay) for delay in delays(plan))


def with_policy(plan: Plan, weights: WeightPolicy, predictor: Predictor = "") -> Plan:
    """Return a plan under a weight policy, with the samples in flight and the versions that it needs.

    Args:
        plan: any sound plan.
        weights: the policy.
        predictor: of the policy `predict`.
    """
    planned = replace(plan, weights=weights, predictor=predictor, prediction=None)
    counts, most = in_flight_of(planned), most_in_flight(planned)
    if plan.weights != "flush" != weights:  # Keep what hides messages.
        own = [stage.in_flight for stage in plan.stages]
        counts = [int(max(n, min(count, limit))) for n, count, limit in zip(counts, own, most, strict=True)]
    planned = _with(planned, counts, [1] * len(plan.stages))
    return _with(planned, [stage.in_flight for stage in planned.stages], planned_versions(planned))


def in_flight_of(plan: Plan) -> Sequence[int]:
    """Return the samples in flight that 1F1B needs under the plan's weight policy, by stage."""
    sizes, bursts = [stage.micro_batch for stage in plan.stages], [stage.burst for stage in plan.stages]
    batch_size = plan.batch_size if plan.weights == "flush" else inf
    in_flight = in_flight_samples(batch_size, sizes, bursts, plan.successors)
    return [int(min(count, most)) for count, most in zip(in_flight, most_in_flight(plan), strict=True)]


def most_in_flight(plan: Plan) -> Sequence[float]:
    """Return the most samples in flight that the plan's weight policy allows, by stage."""
    return [most_in_flight_of(plan.weights, plan.batch_size, stage.micro_batch) for stage in plan.stages]


def _with(plan: Plan, in_flight: Sequence[int], versions: Sequence[int]) -> Plan:
    pairs = zip(plan.stages, in_flight, versions, strict=True)
    return replace(plan, stages=tuple(replace(stage, in_flight=n, versions=v) for stage, n, v in pairs))
