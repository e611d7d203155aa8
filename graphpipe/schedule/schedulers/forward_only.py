"""Only forwards, for plans that do not train (inference).

    time ->
    stage 0   F0 F1 F2 F3 .. F4 .. F5        In flight: three micro-batches, of which one is computed,
    stage 1      F0 ... F1 ... F2 ... F3     one is sent and one waits. F4 waits for F1 of stage 1.

The runtime's credits (`schedule.credits`) keep a stage from running further ahead.
"""

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.in_flight import forward_in_flight
from graphpipe.schedule.actions import Compute
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.scheduler import Scheduler

NAME = "forward-only"


def build(plan: Plan) -> Schedule:
    """Return the forwards of a plan that does not train, in the order in which their values arrive.

    Raises:
        InvalidInput: the plan trains, or stages wait for each other forever because too few samples may be in flight.
    """
    if plan.trains:
        raise InvalidInput(
            "schedule 'forward-only' has no backwards, but the plan trains",
            where="plan, schedule",
            remedy="Choose 1f1b, or plan for inference.",
        )
    lowered = lower(plan, Schedule(name=NAME, devices=((),) * len(plan.cluster.devices)))
    tasks = (tuple(it.task for it in listed if isinstance(it, Compute)) for listed in lowered.devices)
    return Schedule(name=NAME, devices=tuple(tasks))


def in_flight(plan: Plan) -> tuple[int, ...]:
    """Return the samples in flight of every stage (see `forward_in_flight`)."""
    edges = [(edge.source, edge.target) for edge in plan.edges]
    return forward_in_flight(plan.batch_size, [stage.micro_batch for stage in plan.stages], edges)


SCHEDULER = Scheduler(name=NAME, build=build, in_flight=in_flight, trains=False)
