"""The work of a whole plan as a list scheduler sees it, with equal branches seen once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.equal_stages import Hop, Messages, alike
from graphpipe.schedule.list_scheduling.stage_work import Outlet, Portions, StageWork, own_works


@dataclass(frozen=True, slots=True)
class Works:
    """The work of a plan; stages that do the same at the same times are there once."""

    each: tuple[StageWork, ...]
    """In topological order."""
    stands: tuple[int, ...]
    """For each stage of the plan, which of the works is its own."""
    devices: tuple[int, ...]
    """One for all that host the same stages, and none for stages that are there as another one."""


def works_of(plan: Plan) -> Works:
    """Return the work of the stages of a plan."""
    own, hosted = own_works(plan), hosted_by(plan)
    alone = [all(len(hosted[device]) == 1 for device in stage.devices) for stage in plan.stages]
    # Who shares a device also waits for others there: nobody stands for it.
    kinds = [(work, -1 if alone[stage] else stage) for stage, work in enumerate(own)]
    hops = _hops(plan)
    stands = alike(kinds, hops)
    position = {stage: at for at, stage in enumerate(sorted(set(stands)))}
    places = {stage: _places(plan.stages[stage].devices, hosted) for stage in position}
    devices = sorted({device for some in places.values() for device in some})
    at = {device: place for place, device in enumerate(devices)}
    routed = _routed(plan.batch_size, own, [hop._replace(source=stands[hop.source]) for hop in hops], position)
    each = [replace(work, places=tuple(at[device] for device in places[stage])) for stage, work in routed.items()]
    return Works(tuple(each), tuple(position[stage] for stage in stands), tuple(devices))


def _hops(plan: Plan) -> list[Hop]:
    found: list[Hop] = []
    for number, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        links = plan.cluster.links(source.devices, target.devices)
        messages = Messages(edge.bytes_per_sample, max(source.degree, target.degree), links)
        found.append(Hop(edge.source, edge.target, messages))
        if number in plan.gradient_edges:
            found.append(Hop(edge.target, edge.source, messages))
    return found


def hosted_by(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the stages of each device in use."""
    found: dict[int, tuple[int, ...]] = {}
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            found[device] = (*found.get(device, ()), number)
    return found


def _places(devices: Sequence[int], hosted: Mapping[int, tuple[int, ...]]) -> list[int]:
    """The first of the devices that host the same stages."""
    return list({hosted[device]: device for device in reversed(devices)}.values())


def _routed(
    batch_size: int, own: Sequence[StageWork], hops: Iterable[Hop], position: Mapping[int, int]
) -> dict[int, StageWork]:
    """The works of the stages that have a position, with all messages between them."""
    sent: dict[tuple[int, bool], list[Outlet]] = {}
    waits = {(stage, forward): [0] * own[stage].count for stage in position for forward in (True, False)}
    # Messages of stages that are alike count as one: they come at the same times.
    for channel, hop in enumerate(dict.fromkeys(hop for hop in hops if hop.target in position)):
        forward = hop.source < hop.target
        portions = _portions(batch_size, own[hop.source].micro_batch, own[hop.target].micro_batch, hop.messages)
        sent.setdefault((hop.source, forward), []).append(Outlet(position[hop.target], channel, portions))
        for needing, _ in (portion for some in portions for portion in some):
            waits[hop.target, forward][needing] += 1
    return {
        stage: replace(
            own[stage],
            outputs=tuple(sent.get((stage, True), ())),
            gradients=tuple(sent.get((stage, False), ())),
            inputs=tuple(waits[stage, True]),
            returns=tuple(waits[stage, False]),
        )
        for stage in position
    }


def _portions(batch_size: int, size: int, step: int, messages: Messages) -> Portions:
    if size == step:
        seconds = messages.seconds(size)
        return tuple(((index, seconds),) for index in range(batch_size // size))
    return tuple(
        tuple(
            (there, messages.seconds(min(start + size, (there + 1) * step) - max(start, there * step)))
            for there in range(start // step, -(-(start + size) // step))
        )
        for start in range(0, batch_size, size)
    )
