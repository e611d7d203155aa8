"""The work of a whole plan, as list schedulers read it. Equal branches are listed once."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
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
    ports = [stage.devices[0] for stage in plan.stages]
    routed = _routed(plan.batch_size, own, _distinct(hops, stands, position), position, ports)
    works = [replace(work, places=tuple(at[device] for device in places[stage])) for stage, work in routed.items()]
    return PlanWork(tuple(works), tuple(position[stage] for stage in stands), tuple(devices))


def _hops(plan: Plan) -> list[Hop]:
    hops: list[Hop] = []
    for number, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        links = plan.cluster.links(source.devices, target.devices)
        shares, fewer = max(source.degree, target.degree), min(source.degree, target.degree)
        partners = 1.0 if shares == fewer else _partners(plan, source.devices, target.devices)
        ends = (partners, 1.0) if source.degree == fewer else (1.0, partners)
        hops.append(Hop(edge.source, edge.target, Messages(edge.bytes_per_sample, shares, links, *ends)))
        if number in plan.gradient_edges:
            back = Messages(plan.sent_bytes(number, backward=True), shares, links, *ends[::-1])
            hops.append(Hop(edge.target, edge.source, back))
    return hops


def _partners(plan: Plan, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
    """Return with how many others a replica of the smaller stage exchanges messages through its port; at least 1."""

    def partners() -> float:
        pairs = [bool(plan.cluster.port(one, other)) for one in sources for other in targets]
        return max(1.0, max(len(sources), len(targets)) / min(len(sources), len(targets)) * sum(pairs) / len(pairs))

    return plan.cost_model.op_bytes.once(("partners", sources, targets), partners)


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


def _distinct(hops: Sequence[Hop], stands: Sequence[int], position: Container[int]) -> dict[Hop, tuple[float, float]]:
    """Return the messages between stages that are listed, with how many a device sends, and gets, at once.

    Messages of equal stages count as one, because they arrive at the same times.
    """
    sent = Counter((hop.source, stands[hop.target]) for hop in hops)
    got = Counter((stands[hop.source], hop.target) for hop in hops)
    distinct = (hop._replace(source=stands[hop.source]) for hop in hops if hop.target in position)
    return {
        hop: (hop.messages.sent * sent[hop.source, hop.target], hop.messages.got * got[hop.source, hop.target])
        for hop in distinct
    }


def _routed(
    batch_size: int,
    own: Sequence[StageWork],
    hops: Mapping[Hop, tuple[float, float]],
    position: Mapping[int, int],
    ports: Sequence[int],
) -> dict[int, StageWork]:
    """Return the work of the stages that have a position, with all messages between them.

    Messages that share ports leave a device one after the other, whatever stages they go to. Other messages wait only
    for those along the same edge.
    """
    sent: dict[tuple[int, bool], list[MessageRoute]] = {}
    waits = {(stage, forward): [0] * own[stage].count for stage in position for forward in (True, False)}
    channels: dict[object, int] = {}
    for hop, ends in hops.items():
        forward, messages = hop.source < hop.target, hop.messages
        fuller, size, step = max(ends), own[hop.source].micro_batch, own[hop.target].micro_batch
        channel = channels.setdefault(ports[hop.source] if messages.share_ports else hop, len(channels))
        occupied = ends[0] / fuller if messages.share_ports else 1.0
        portions = _portions(batch_size, size, step, messages, fuller)
        route = MessageRoute(position[hop.target], channel, occupied, portions)
        sent.setdefault((hop.source, forward), []).append(route)
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
def _portions(batch_size: int, size: int, step: int, messages: Messages, at_once: float) -> Portions:
    portions: list[list[tuple[int, float]]] = [[] for _ in range(count_micro_batches(batch_size, size))]
    for index, there, samples in common_samples(batch_size, size, 1, step, 1).pieces[0]:
        portions[index].append((there, messages.seconds(samples, at_once)))
    return tuple(map(tuple, portions))
