"""Exchanges of devices between the stages of a finished plan."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from graphpipe.planners.problem.limits import MANY, PASSES, SEARCHED_TASKS
from graphpipe.planners.problem.options import Options
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import bottleneck_seconds, estimated_step_seconds
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage, StageEdge

Exchange = dict[int, int]
"""The device that replaces each device."""


def exchanged(plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one in which stages have exchanged devices that differ in type or in their links.

    Hill climbing over pairs of stages of equal degree, and, if links differ from pair to pair, over pairs of devices,
    of which one may be unused. An exchange that shortens the step and fits in memory is kept, until a whole pass
    changes nothing.
    """
    best, seconds = plan, None
    tasks = sum(map(plan.micro_batches, range(len(plan.stages))))
    evaluations = max(PASSES, SEARCHED_TASKS // tasks)
    for _ in range(PASSES):
        start = best
        for exchange in _promising(best):
            trial = after_exchange(best, exchange)
            seconds = options.evaluate(best) if seconds is None else seconds
            if memory_shortfall(trial) > 0 or plan.batch_size * bottleneck_seconds(trial) >= seconds:
                continue
            if not evaluations:
                return best
            evaluations -= 1
            if (trial_seconds := options.evaluate(trial)) < seconds:
                best, seconds = trial, trial_seconds
        if best is start:
            break
    return best


def _promising(plan: Plan) -> list[Exchange]:
    """Return the exchanges worth trying."""
    exchanges = list(_exchanges(plan))
    if len(exchanges) <= MANY:
        return exchanges
    ranked = [(_looks(after_exchange(plan, exchange)), number) for number, exchange in enumerate(exchanges)]
    now = _looks(plan)
    return [exchanges[number] for looks, number in sorted(ranked) if looks < now]


def _looks(plan: Plan) -> tuple[float, float]:
    return estimated_step_seconds(plan), transfer_seconds(plan)


def transfer_seconds(plan: Plan) -> float:
    """Return the seconds that all messages and all-reduces of a mini-batch take, one after the other."""
    directions = [(position, False) for position in range(len(plan.edges))]
    directions += [(position, True) for position in sorted(plan.gradient_edges)]
    messages = sum(
        plan.sent_bytes(position, plan.joint_edges.without(position, backward=backward), backward=backward)
        * plan.batch_size
        * _mean_seconds_per_byte(plan, plan.edges[position])
        for position, backward in directions
    )
    tied = sum(plan.tied_gradients_seconds(gradients) for gradients in plan.tied_gradients)
    return messages + tied + sum(map(plan.reduce_seconds, range(len(plan.stages))))


def _mean_seconds_per_byte(plan: Plan, edge: StageEdge) -> float:
    sources, targets = plan.stages[edge.source].devices, plan.stages[edge.target].devices
    seconds = [plan.cluster.seconds_per_byte(source, target) for source in sources for target in targets]
    return sum(seconds) / len(seconds)


def _exchanges(plan: Plan) -> Iterator[Exchange]:
    regular = plan.cluster.link_levels.regular
    devices = plan.cluster.devices
    teams = sorted({stage.devices for stage in plan.stages})
    for one, other in combinations(teams, 2):
        if len(one) == len(other) and not set(one) & set(other):
            types = [Counter(devices[at].type for at in team) for team in (one, other)]
            if types[0] != types[1] or not regular:
                yield dict(zip(one + other, other + one, strict=True))
    if not regular:
        for one, other in combinations(range(len(devices)), 2):
            if any((one in team) != (other in team) for team in teams):
                yield {one: other, other: one}


def on_first_devices(plan: Plan) -> Plan:
    """Return the plan on devices in the order in which its stages use them, where all devices and nodes are alike.

    stages on (2, 3), (0, 1)   ->   (0, 1), (2, 3)
    """
    links, alike = plan.cluster.link_levels, len(plan.cluster.types) == 1 and len(plan.cluster.every_level) <= 2
    every = range(len(links.groups))
    used = dict.fromkeys([*(device for stage in plan.stages for device in stage.devices), *every])
    groups = [[device for device in used if links.groups[device] == group] for group in sorted(set(links.groups))]
    if not (alike and links.regular and len({len(members) for members in groups}) == 1):
        return plan
    order = list(dict.fromkeys(links.groups[device] for device in used))
    exchange = {
        device: sorted(target)[at]
        for group, target in zip(order, groups, strict=True)
        for at, device in enumerate(groups[group])
    }
    return after_exchange(plan, exchange)


def after_exchange(plan: Plan, exchange: Exchange) -> Plan:
    """Return the plan with its stages on the exchanged devices."""
    return replace(plan, stages=tuple(_exchanged(stage, exchange) for stage in plan.stages))


def _exchanged(stage: Stage, exchange: Exchange) -> Stage:
    old = {exchange.get(device, device): device for device in stage.devices}
    neighbours = [stage.neighbour(old[device]) for device in sorted(old)]
    offload_to = tuple(exchange.get(device, device) for device in neighbours if device is not None)
    return replace(stage, devices=tuple(sorted(old)), offload_to=offload_to)
