"""The work of a whole plan, as list schedulers read it. Equal branches are listed once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from graphpipe.plans import Plan
from graphpipe.plans.sharding import common_samples, count_micro_batches
from graphpipe.schedule.list_scheduling.equal_stages import Hop, Messages, find_equal_stages
from graphpipe.schedule.list_scheduling.stage_work import MessageRoute, Portions, StageWork, work_of_stages
from graphpipe.schedule.schedule import StageTask


@dataclass(frozen=True, slots=True)
class PlanWork:
    """The work of a plan. Stages that do the same at the same times are listed once."""

    stages: tuple[StageWork, ...]
    """The work of stages, in topological order."""
    work_of: tuple[int, ...]
    """The position in `stages` of each stage of the plan."""
    devices: tuple[int, ...]
    """One device of each group that hosts the same stages, for the stages that are listed."""


def work_of_plan(plan: Plan) -> PlanWork:
    """Return the work of the stages of a plan."""
    own, hosted = work_of_stages(plan), hosted_stages(plan)
    alone = [all(len(hosted[device]) == 1 for device in stage.devices) for stage in plan.stages]
    # A stage that shares its device also waits for the other stage there, so it is listed itself.
    kinds = [(work, -1 if alone[stage] else stage) for stage, work in enumerate(own)]
    hops = _hops(plan)
    stands = find_equal_stages(kinds, hops)
    position = {stage: at for at, stage in enumerate(sorted(set(stands)))}
    places = {stage: _places(plan.stages[stage].devices, hosted) for stage in position}
    devices = sorted({device for some in places.values() for device in some})
    at = {device: place for place, device in enumerate(devices)}
    routed = _routed(plan.batch_size, own, [hop._replace(source=stands[hop.source]) for hop in hops], position)
    works = [replace(work, places=tuple(at[device] for device in places[stage])) for stage, work in routed.items()]
    return PlanWork(tuple(works), tuple(position[stage] for stage in stands), tuple(devices))


def _hops(plan: Plan) -> list[Hop]:
    hops: list[Hop] = []
    for number, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        links = plan.cluster.links(source.devices, target.devices)
        shares = max(source.degree, target.degree)
        hops.append(Hop(edge.source, edge.target, Messages(edge.bytes_per_sample, shares, links)))
        if number in plan.gradient_edges:
            back = Messages(plan.sent_bytes(number, backward=True), shares, links)
            hops.append(Hop(edge.target, edge.source, back))
    return hops


def hosted_stages(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the stages of each device in use."""
    stages_by_device: dict[int, tuple[int, ...]] = {}
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            stages_by_device[device] = (*stages_by_device.get(device, ()), number)
    return stages_by_device


def most_held(plan: Plan, orders: Iterable[Sequence[StageTask]]) -> list[int]:
    """Return the most samples that orders of tasks hold at every stage, from a forward to its weight gradient.

    Args:
        plan: of the tasks.
        orders: of each device, or of each device that differs from others.
    """
    sizes = [stage.micro_batch for stage in plan.stages]
    most = [0] * len(sizes)
    for tasks in orders:
        held = [0] * len(sizes)
        for kind, stage, _ in tasks:
            if kind == "F":
                held[stage] += sizes[stage]
                if held[stage] > most[stage]:
                    most[stage] = held[stage]
            elif kind in ("B", "W"):
                held[stage] -= sizes[stage]
    return most


def _places(devices: Sequence[int], hosted: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Return the first device of each group that hosts the same stages."""
    return list({hosted[device]: device for device in reversed(devices)}.values())


def _routed(
    batch_size: int, own: Sequence[StageWork], hops: Iterable[Hop], position: Mapping[int, int]
) -> dict[int, StageWork]:
    """Return the work of the stages that have a position, with all messages between them."""
    sent: dict[tuple[int, bool], list[MessageRoute]] = {}
    waits = {(stage, forward): [0] * own[stage].count for stage in position for forward in (True, False)}
    # Messages of equal stages count as one, because they arrive at the same times.
    for channel, hop in enumerate(dict.fromkeys(hop for hop in hops if hop.target in position)):
        forward = hop.source < hop.target
        portions = _portions(batch_size, own[hop.source].micro_batch, own[hop.target].micro_batch, hop.messages)
        sent.setdefault((hop.source, forward), []).append(MessageRoute(position[hop.target], channel, portions))
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


@lru_cache(maxsize=4096)  # A search makes many plans whose stages exchange the same messages.
def _portions(batch_size: int, size: int, step: int, messages: Messages) -> Portions:
    portions: list[list[tuple[int, float]]] = [[] for _ in range(count_micro_batches(batch_size, size))]
    for index, there, samples in common_samples(batch_size, size, 1, step, 1).pieces[0]:
        portions[index].append((there, messages.seconds(samples)))
    return tuple(map(tuple, portions))
