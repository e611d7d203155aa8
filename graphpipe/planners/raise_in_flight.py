"""Memory that a plan leaves unused, as more samples in flight: what zero-bubble schedules fill bubbles with."""

from dataclasses import replace
from math import inf

from graphpipe.plans import Plan
from graphpipe.plans.estimates import needed_bytes


def with_room(plan: Plan, limit_bytes: float = inf) -> Plan:
    """Return the plan with every stage's `in_flight` raised as far as the memory of its devices goes.

    A device that hosts several stages gives each an equal share of what it has left. No stage gets less than it had.

    Args:
        plan: a sound plan.
        limit_bytes: use no more than this of any device. `max(needed_bytes(plan).values())` is the peak that the plan
            has anyway: so the published systems state equal memory, over all devices.
    """
    needed = needed_bytes(plan)
    hosted = {device: sum(device in stage.devices for stage in plan.stages) for device in needed}
    capacity = {device: plan.cluster.types[plan.cluster.devices[device].type].memory_bytes for device in needed}
    spare = {
        device: max(0.0, min(limit_bytes, capacity[device]) - needed[device]) / hosted[device] for device in needed
    }
    stages = [
        replace(stage, in_flight=stage.in_flight + _more(plan, number, min(spare[device] for device in stage.devices)))
        for number, stage in enumerate(plan.stages)
    ]
    return replace(plan, stages=tuple(stages), prediction=None)


def with_slack(plan: Plan) -> Plan:
    """Return the plan with one more micro-batch in flight per stage that follows, as far as memory goes.

    1F1B's samples in flight keep a pipeline busy when messages take no time. Where they do, a backward comes back
    late by the messages of its round trip, and every stage waits; one micro-batch more per hop covers it.
    """
    hops = [0] * len(plan.stages)
    for stage in reversed(range(len(plan.stages))):
        hops[stage] = max((1 + hops[after] for after in plan.successors[stage]), default=0)
    most = with_room(plan).stages
    stages = tuple(
        replace(stage, in_flight=min(stage.in_flight + count * stage.micro_batch, limit.in_flight))
        for stage, count, limit in zip(plan.stages, hops, most, strict=True)
    )
    return replace(plan, stages=stages, prediction=None)


def _sample_bytes(plan: Plan, number: int) -> float:
    """Bytes that a sample in flight at a stage takes on each of its devices, in the mean."""
    stage = plan.stages[number]
    return plan.cost_model.activation_bytes(stage.ops, stage.recompute) / stage.degree


def _more(plan: Plan, number: int, spare: float) -> int:
    stage, each = plan.stages[number], _sample_bytes(plan, number)
    left = plan.batch_size - stage.in_flight
    return min(left, int(spare / (each * stage.micro_batch)) * stage.micro_batch) if each else left
