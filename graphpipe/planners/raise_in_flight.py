"""Use the memory that a plan leaves free for more samples in flight, so that schedules can fill bubbles with them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import host_bytes, more_between_halves, needed_bytes, stage_memory
from graphpipe.plans.sharding import rounded_up
from graphpipe.plans.stage import Stage


def with_room(plan: Plan, limit_bytes: float = inf, *, splits: bool = False) -> Plan:
    """Return the plan with every stage's `in_flight` raised as far as the memory of its devices allows.

    The stages on one device, and those that offload to it, share its spare memory equally. So do the devices of
    a node that offload to its memory. `in_flight` never falls.

    Args:
        plan: a sound plan.
        limit_bytes: most memory to use on each device. `max(needed_bytes(plan).values())` keeps the plan's own peak,
            which is what published comparisons call equal memory.
        splits: whether the schedule splits backwards. Then a sample counts as much as between the halves, if it needs
            more memory there.
    """
    needed = needed_bytes(plan)
    neighbours = [device for stage in plan.stages for device in stage.offload_to]
    hosted = {device: sum(device in it.devices for it in plan.stages) + neighbours.count(device) for device in needed}
    capacity = {device: plan.cluster.type_of(device).memory_bytes for device in needed}
    spare = {
        device: max(0.0, min(limit_bytes, capacity[device]) - needed[device]) / hosted[device] for device in needed
    }
    host = _host_spare(plan)
    stages = [
        replace(stage, in_flight=stage.in_flight + _more(plan, number, spare, host, splits=splits))
        for number, stage in enumerate(plan.stages)
    ]
    return replace(plan, stages=tuple(stages), prediction=None)


def with_slack(plan: Plan) -> Plan:
    """Return the plan with one more micro-batch in flight for each following stage, as far as memory allows.

    The samples in flight of 1F1B keep a pipeline busy if messages take no time. Otherwise each backward is late by the
    messages of its round trip, and every stage waits. One more micro-batch per hop hides these messages.

    A stage whose predecessor has no memory for more samples gets only as many as that predecessor can send it before
    its first backward. With more, the two would wait for each other forever.
    """
    hops = [0] * len(plan.stages)
    for stage in reversed(range(len(plan.stages))):
        hops[stage] = max((1 + hops[after] for after in plan.successors[stage]), default=0)
    stages: list[Stage] = []
    for number, (stage, limit) in enumerate(zip(plan.stages, with_room(plan).stages, strict=True)):
        wanted = min(stage.in_flight + hops[number] * stage.micro_batch, limit.in_flight)
        sent = min((_sent(stages[before], stage) for before in plan.predecessors[number]), default=wanted)
        stages.append(replace(stage, in_flight=max(stage.in_flight, min(wanted, sent))))
    return replace(plan, stages=tuple(stages), prediction=None)


def _sent(before: Stage, stage: Stage) -> int:
    # The samples that a stage can forward before it needs a backward, in whole micro-batches of its successor. Larger
    # bursts of the predecessor need the rest of a burst more (see `in_flight_samples`).
    rest = max(before.burst * before.micro_batch - stage.burst * stage.micro_batch, 0)
    return (before.in_flight - rest) // stage.micro_batch * stage.micro_batch


def _host_spare(plan: Plan) -> dict[int, float]:
    # By device that offloads to the memory of its node: its equal part of what is free there.
    offloading = [device for stage in plan.stages if stage.offload and not stage.offload_to for device in stage.devices]
    node = {device: plan.cluster.devices[device].node for device in offloading}
    sharing, held = Counter(node[device] for device in offloading), host_bytes(plan)
    free = {name: max(0.0, plan.cluster.host_memory_bytes(name) - held[name]) / sharing[name] for name in sharing}
    return {device: free[node[device]] for device in offloading}


def _more(
    plan: Plan, number: int, spare_bytes: Mapping[int, float], host_spare: Mapping[int, float], *, splits: bool
) -> int:
    stage = plan.stages[number]
    spare = min(spare_bytes[device] for device in stage.devices)
    memory = stage_memory(plan.cost_model, stage)
    each = memory.per_sample / stage.degree
    left = rounded_up(plan.batch_size, stage.micro_batch) - stage.in_flight
    if memory.offloaded:
        places = [spare_bytes[it] for it in stage.offload_to] or [host_spare[it] for it in stage.devices]
        room = min(places) * stage.degree / memory.offloaded
        left = min(left, int(min(room, left + stage.micro_batch) / stage.micro_batch) * stage.micro_batch)
    spare -= max(0.0, memory.moving - memory.offloaded * stage.in_flight / stage.degree)
    if splits:
        waiting = more_between_halves(plan, number) / stage.degree
        spare, each = spare - waiting * stage.in_flight, each + waiting
    if spare < 0:
        return 0
    return min(left, int(spare / (each * stage.micro_batch)) * stage.micro_batch) if each else left
