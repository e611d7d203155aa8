"""What would make a step faster: changes of a plan, each of which is planned or simulated."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphpipe.cluster.device import Link
from graphpipe.errors import GraphPipeError
from graphpipe.planners.registry import DEFAULT
from graphpipe.planning.plan import plan as make_plan
from graphpipe.plans import Plan, Stage
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.sharding import rounded_up
from graphpipe.plans.verify import verify
from graphpipe.schedule.schedulers.registry import all_schedulers
from graphpipe.simulator import step_seconds
from graphpipe.waiting import waiting

MOST_TASKS = 20_000
"""Steps with more tasks take too long to simulate several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A change, and the step with it."""

    change: str
    """What is changed, as the end of a sentence: "with ..."."""
    step_seconds: float
    gain: float
    """More samples per second, as a share: 0.1 is 10 % more."""


def outlooks(plan: Plan, *, bottleneck: int) -> list[Outlook]:
    """Return what changes of a plan would bring, the best first. Changes that do not work are left out.

    Args:
        plan: a sound plan.
        bottleneck: the stage that computes for the longest time.
    """
    before = plan.batch_size / step_seconds(plan)
    if sum(2 * stage.degree * plan.micro_batches(number) for number, stage in enumerate(plan.stages)) > MOST_TASKS:
        return []
    outcomes: list[Outlook] = []
    changes = list(_changes(plan, bottleneck))
    with waiting("simulating what would help") as advance:
        for number, (change, build) in enumerate(changes):
            advance(number / len(changes))
            try:
                changed = build()
                verify(changed)
                seconds = step_seconds(changed)
            except GraphPipeError:  # it does not fit in memory, or the schedule does not run it
                continue
            rate = changed.batch_size / seconds
            outcomes.append(Outlook(change=change, step_seconds=seconds, gain=rate / before - 1.0))
    return sorted(outcomes, key=lambda outcome: -outcome.gain)


def _changes(plan: Plan, bottleneck: int) -> Iterator[tuple[str, Callable[[], Plan]]]:
    name = plan.stages[bottleneck].name
    yield f"twice as many devices for {name}", lambda: _wider(plan, bottleneck)
    yield "micro-batches of half the size", lambda: _resized(plan, 1, 2)
    yield "micro-batches of twice the size", lambda: _resized(plan, 2, 1)
    for scheduler in all_schedulers():
        if scheduler != plan.schedule:
            yield f"schedule {scheduler}", lambda name=scheduler: replace(plan, schedule=name, prediction=None)
    yield "twice the mini-batch", lambda: replace(plan, batch_size=2 * plan.batch_size, prediction=None)
    yield "links that take no time", lambda: _fast_links(plan)
    if plan.planner != DEFAULT:
        yield f"the plan of {DEFAULT}, same schedule", lambda: _planned(plan)


def _planned(plan: Plan) -> Plan:
    return make_plan(plan.graph, plan.costs, plan.cluster, batch_size=plan.batch_size, schedule=plan.schedule)


def _wider(plan: Plan, number: int) -> Plan:
    # New devices like those that the stage has, on the nodes of those.
    stage, devices = plan.stages[number], plan.cluster.devices
    more = tuple(replace(devices[device], name=f"{devices[device].name}-more") for device in stage.devices)
    added = range(len(devices), len(devices) + len(more))
    stages = list(plan.stages)
    stages[number] = replace(stage, devices=(*stage.devices, *added), offload_to=stage.offload_to * 2)
    return _with_stages(replace(plan, cluster=replace(plan.cluster, devices=(*devices, *more))), stages)


def _with_stages(plan: Plan, stages: Sequence[Stage]) -> Plan:
    """Return the plan with these stages, and with the samples in flight that 1F1B needs for them."""
    needed = in_flight_samples(
        plan.batch_size, [stage.micro_batch for stage in stages], [stage.burst for stage in stages], plan.successors
    )
    held = (stage.in_flight // stage.micro_batch * stage.micro_batch for stage in stages)
    most = (rounded_up(plan.batch_size, stage.micro_batch) for stage in stages)
    filled = (
        replace(stage, in_flight=min(limit, max(now, need)))
        for stage, limit, now, need in zip(stages, most, held, needed, strict=True)
    )
    return replace(plan, stages=tuple(filled), prediction=None)


def _resized(plan: Plan, times: int, divided: int) -> Plan:
    # Stages that need the whole mini-batch keep it, and no micro-batch is larger than the mini-batch.
    def size(stage: Stage) -> int:
        if stage.micro_batch == plan.batch_size:
            return stage.micro_batch
        return min(plan.batch_size, max(1, stage.micro_batch * times // divided))

    stages = [replace(stage, micro_batch=size(stage)) for stage in plan.stages]
    if tuple(stages) == plan.stages:
        raise GraphPipeError("no micro-batch can change")
    return _with_stages(plan, stages)


def _fast_links(plan: Plan) -> Plan:
    def fast(link: Link) -> Link:
        return replace(link, latency_seconds=0.0, bandwidth_bytes_per_second=1e18)

    return replace(plan, cluster=plan.cluster.with_every_link(fast), prediction=None)
