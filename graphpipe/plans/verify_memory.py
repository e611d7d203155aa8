"""Verify a plan's memory. Every byte is derived only from graph, cluster and cost table."""

import math
from collections.abc import Mapping, Sequence

from graphpipe.costs import OpCost, SavedBytes, Temporaries
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.plans.stage import PlanFields, Stage
from graphpipe.plans.verify_ranks import of_rank, replica_of
from graphpipe.units import format_bytes

RELATIVE = 1e-6
"""Largest relative difference between two figures that count as equal."""


def check_memory(plan: PlanFields, besides: Mapping[int, float] | None = None) -> None:
    """Check that the stages of every device fit, with the bytes that the schedule needs besides, by device.

    Raises:
        Infeasible: they need more than it has. The missing bytes are given.
    """
    needs: dict[int, list[tuple[float, str]]] = {}
    transient: dict[int, float] = {}
    for stage in plan.stages:
        own = of_rank(plan, stage)
        need, once = _stage_bytes(own, stage) if plan.trains else _inference_bytes(own, stage)
        for device in stage.devices:
            needs.setdefault(device, []).append((need, stage.name))
            transient[device] = max(transient.get(device, 0.0), once)
        if stage.offload_to:
            offloaded = stage.in_flight / stage.degree * _offloaded(own, stage)
            for neighbour in stage.offload_to:
                needs.setdefault(neighbour, []).append((offloaded, stage.name))
    _check_host_memory(plan)
    for device, items in sorted(needs.items()):
        total = sum(need for need, _ in items) + transient.get(device, 0.0) + (besides or {}).get(device, 0.0)
        capacity = plan.cluster.types[plan.cluster.devices[device].type].memory_bytes
        beside = _beside(plan, device, total)
        if total + beside > capacity * (1 + RELATIVE):
            names = " and ".join(f"'{name}'" for _, name in sorted(items, reverse=True))
            more, missing = f" and {format_bytes(beside)} besides" if beside else "", total + beside - capacity
            raise Infeasible(
                f"stage {names} needs {format_bytes(total)}{more} on device '{plan.cluster.devices[device].name}', "
                f"which has {format_bytes(capacity)}: {format_bytes(missing)} ({missing:.0f} bytes) short",
                remedy="Use more devices, a smaller micro-batch, recomputation, sharded optimizer state, "
                "or devices with more memory.",
            )


def _beside(plan: PlanFields, device: int, needed: float) -> float:
    """Return the bytes of context, workspaces, communicators and reserve of a device in use, besides what it needs."""
    kind = plan.cluster.types[plan.cluster.devices[device].type]
    held = kind.context_bytes + kind.workspace_bytes + kind.reserved_share * needed
    if not kind.communicator_bytes:
        return held
    peers = {pair[0] for pair in _exchanging(plan) if pair[1] == device}
    peers |= {pair[1] for pair in _exchanging(plan) if pair[0] == device}
    used = {own for stage in plan.stages for own in stage.devices}
    holders = {name: set[int]() for name in (tied.name for tied in plan.graph.shared if tied.trainable)}
    for number, stage in enumerate(plan.stages):
        for op in stage.ops:
            for name in set(plan.graph[op].parameters) & holders.keys():
                holders[name].add(number)
    # Parameters that the same stages share are summed together.
    groups = {tuple(sorted(stages)) for stages in holders.values() if len(stages) > 1}
    sums = [group for stage in plan.stages for group in _same_parts([stage])]
    sums += [group for stages in groups for group in _same_parts([plan.stages[number] for number in stages])]
    sums += [
        set(stage.devices[at : at + stage.tensor])
        for stage in plan.stages
        for at in range(0, len(stage.devices), stage.tensor)
        if stage.tensor > 1
    ]
    members = sum(len(devices) > 1 and device in devices for devices in (*sums, used))
    return held + kind.communicator_bytes * (2 * len(peers - {device}) + members)


def _same_parts(stages: Sequence[Stage]) -> list[set[int]]:
    """Return the devices that sum gradients of the same parts: those of equal rank, if all stages have as many."""
    ranks = {stage.tensor for stage in stages}
    step = ranks.pop() if len(ranks) == 1 else 1
    return [{device for stage in stages for device in stage.devices[rank::step]} for rank in range(step)]


def _exchanging(plan: PlanFields) -> set[tuple[int, int]]:
    """Return the pairs of devices that exchange a sample, or to which one offloads."""

    def home(stage: Stage, sample: int) -> tuple[int, ...]:
        first = replica_of(plan, stage, sample) * stage.tensor
        return stage.devices[first : first + stage.tensor]

    pairs: set[tuple[int, int]] = set()
    for edge in plan.edges:
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        back = source.tensor != target.tensor and any(
            read.source in source.ops and read.target in target.ops and read.value not in plan.graph.one_way
            for read in plan.graph.reads
        )
        repeats = math.lcm(source.micro_batch, target.micro_batch)
        for sample in range(plan.batch_size if plan.batch_size % repeats else repeats):
            here, there = home(source, sample), home(target, sample)
            pairs |= {(here[at % len(here)], own) for at, own in enumerate(there) if own not in here}
            if back:
                pairs |= {(there[at % len(there)], own) for at, own in enumerate(here) if own not in there}
    for stage in plan.stages:
        pairs.update(zip(stage.devices, stage.offload_to, strict=False))
    return pairs


def check_neighbours(plan: PlanFields) -> None:
    """Check that the neighbours to which stages offload are other devices of the pipeline.

    Raises:
        InvalidInput: one is not, or there is not one for each device. The stage is named.
    """
    used = {device for stage in plan.stages for device in stage.devices}
    for stage in (stage for stage in plan.stages if stage.offload_to):
        where, count = f"stage '{stage.name}', offload_to", len(stage.offload_to)
        if not stage.offload:
            remedy = "Leave offload_to out, or list in offload what the stage offloads."
            raise InvalidInput("names neighbours, but the stage offloads nothing", where=where, remedy=remedy)
        if count != len(stage.devices):
            what = f"names {count} neighbours, but the stage has {len(stage.devices)} devices"
            raise InvalidInput(what, where=where, remedy="Name one neighbour for each device, in their order.")
        for device, neighbour in zip(stage.devices, stage.offload_to, strict=True):
            if neighbour == device:
                what = f"device {device} is its own neighbour"
                raise InvalidInput(what, where=where, remedy="Name another device.")
            if neighbour not in used:
                what = f"device {neighbour} hosts no stage of the plan"
                raise InvalidInput(what, where=where, remedy=f"Choose one of {sorted(used - {device})}.")


def _check_host_memory(plan: PlanFields) -> None:
    """Check that what the stages of every node offload fits in the node's memory, with all samples in flight."""
    needs: dict[str, list[tuple[float, str]]] = {}
    for stage in (stage for stage in plan.stages if stage.offload and not stage.offload_to):
        offloaded = stage.in_flight / stage.degree * _offloaded(of_rank(plan, stage), stage)
        for device in stage.devices:
            needs.setdefault(plan.cluster.devices[device].node, []).append((offloaded, stage.name))
    for node, items in sorted(needs.items()):
        total, capacity = sum(need for need, _ in items), plan.cluster.host_memory_bytes(node)
        if total > capacity * (1 + RELATIVE):
            names = " and ".join(f"'{name}'" for name in dict.fromkeys(name for _, name in sorted(items, reverse=True)))
            raise Infeasible(
                f"stage {names} offloads {format_bytes(total)} to the memory of node '{node}', which has "
                f"{format_bytes(capacity)} for it: {format_bytes(total - capacity)} ({total - capacity:.0f} bytes) "
                "short",
                remedy="Recompute instead, offload less, or say in the cluster how much host_memory the node has.",
            )


def _offloaded(plan: PlanFields, stage: Stage) -> float:
    """Return the bytes per sample in flight that offloaded operators of a stage save and do not keep."""
    inside, recompute = set(stage.ops), () if isinstance(stage.recompute, str) else stage.recompute
    offloaded = [op for op in stage.ops if submodule(op, stage.offload)]
    replica = stage.micro_batch / stage.degree
    kept = {op: _kept_bytes(plan, op, inside, replica, recompute, stage.offload) for op in offloaded}
    return sum(max(0.0, saved_with_casts(plan, op, replica) - kept[op]) for op in offloaded)


def _stage_bytes(plan: PlanFields, stage: Stage) -> tuple[float, float]:
    """Return the bytes on each device with all samples in flight, and the bytes held only while a task runs."""
    inside, replica = set(stage.ops), stage.micro_batch / stage.degree
    saved = sum(saved_with_casts(plan, op, replica) for op in stage.ops)
    recomputed = 0.0
    if stage.recompute == "full":
        saved, recomputed = 0.0, saved
    elif stage.recompute != "none" or stage.offload:
        names = () if stage.recompute == "none" else stage.recompute
        saved = sum(_kept_bytes(plan, name, inside, replica, names, stage.offload) for name in stage.ops)
        together = ([op for op in inside if submodule(op, (name,))] for name in names)
        recomputed = max((sum(saved_with_casts(plan, op, replica) for op in ops) for ops in together), default=0.0)
    in_flight = stage.in_flight / stage.degree
    once = replica * recomputed + _temporary_bytes(plan, inside, replica)
    # Of what is offloaded, the device holds the share of the micro-batch in work, and of one that comes or goes.
    visiting = min(in_flight, 2 * replica) * _offloaded(plan, stage) if stage.offload else 0.0
    return _state_bytes(plan, stage) + visiting + in_flight * (saved + received_bytes(plan, inside)), once


def _inference_bytes(plan: PlanFields, stage: Stage) -> tuple[float, float]:
    """Return the bytes on each device with all samples in flight, and the bytes held only while a task runs.

    A stage holds one copy of its weights. Every sample in flight holds what the stage receives and what it sends, or
    gives to the caller. A running task holds the values between its operators, and the temporaries of one of them.
    """
    inside = set(stage.ops)
    weights, seen = 0.0, set[str]()
    shared = {tied.name: tied.bytes for tied in plan.graph.shared if tied.trainable}
    read_by: dict[str, set[str]] = {op: set() for op in inside}
    for edge in plan.graph.edges:
        if edge.source in inside:
            read_by[edge.source].add(edge.target)
    kept = 0.0
    for op in plan.graph.ops:
        if op.name in inside:
            weights += op.parameter_bytes - sum(shared[name] for name in seen & set(op.parameters) & shared.keys())
            seen.update(op.parameters)
            if not read_by[op.name] or read_by[op.name] - inside:
                kept += op.output_bytes_per_sample
    samples = stage.micro_batch / stage.degree
    per_sample = kept + received_bytes(plan, inside)
    once = _between(plan, inside, read_by) * samples + _forward_temporaries(plan, inside, samples)
    return weights + stage.in_flight / stage.degree * per_sample, once


def received_bytes(plan: PlanFields, inside: set[str]) -> float:
    """Return the bytes per sample that a stage receives: every value once, however many of its operators read it."""
    received: dict[tuple[str, str], float] = {}
    for edge in plan.graph.edges:
        if edge.target in inside and edge.source not in inside:
            for *_, value, count in edge.reads:
                received[value] = max(received.get(value, 0.0), count)
    return sum(received.values())


def _between(plan: PlanFields, inside: set[str], read_by: dict[str, set[str]]) -> float:
    """Return the most bytes per sample of outputs that a reader in the stage still needs, over its operators in order.

    The output of the operator itself is always there.
    """
    at = {name: position for position, name in enumerate(name for name in plan.graph.order if name in inside)}
    until = {name: max([at[name], *(at[reader] for reader in read_by[name] & inside)]) for name in at}
    return max(
        sum(plan.graph[name].output_bytes_per_sample for name in at if at[name] <= now <= until[name])
        for now in range(len(at))
    )


def _forward_temporaries(plan: PlanFields, inside: set[str], samples: float) -> float:
    """Return the most bytes that one operator holds in its forward."""
    peaks = (held.forward(samples * most_load(plan, op)) for op in inside for held in _temporaries(plan, op))
    return max(peaks, default=0.0)


def _state_bytes(plan: PlanFields, stage: Stage) -> float:
    """Return the bytes of weights (all versions), gradients and optimizer state on the fullest replica of a stage."""
    inside, factor = set(stage.ops), plan.costs.state_bytes_per_parameter_byte
    shared = {tied.name: tied.bytes for tied in plan.graph.shared if tied.trainable}
    elsewhere = {name for op in plan.graph.ops if op.name not in inside for name in op.parameters}
    frozen = tied = 0.0
    own: list[float] = []  # of each operator, the bytes that replicas may share out
    seen: set[str] = set()
    for op in plan.graph.ops:
        if op.name not in inside:
            continue
        held = {name: shared[name] for name in op.parameters if name in shared}
        tied += sum(count for name, count in held.items() if name in elsewhere and name not in seen)
        # A stage has one copy of what its operators share.
        rest = op.parameter_bytes - sum(count for name, count in held.items() if name in elsewhere or name in seen)
        seen.update(op.parameters)
        if op.trainable:
            own.append(rest)
        else:
            frozen += rest
    slots, replicas = max(0.0, factor - 2), stage.degree
    frozen += (stage.versions - 1) * (tied + sum(own))  # like frozen weights, old versions have no gradients
    if stage.state == "whole" or replicas == 1:
        return factor * (tied + sum(own)) + frozen
    if stage.state == "all":  # a shard of everything, and the gathered weights twice or with whole gradients
        return factor * tied + (2 + 1 / replicas) * (frozen + sum(own)) + slots * sum(own) / replicas
    if stage.state == "layers":  # a shard of everything, and two layers, gradients and a buffer of the largest one
        largest = max(op.parameter_bytes for op in plan.graph.ops if op.name in inside)
        return factor * tied + 4 * largest + (frozen + (2 + slots) * sum(own)) / replicas
    taken = [0.0] * replicas
    for count in sorted(own)[::-1]:
        taken[taken.index(min(taken))] += count
    return factor * (tied + sum(own)) + frozen - slots * (sum(own) - max(taken))


def _temporaries(plan: PlanFields, op: str) -> list[Temporaries]:
    return [row.temporaries for row in _rows(plan, op) if row.temporaries is not None]


def _rows(plan: PlanFields, op: str) -> list[OpCost]:
    """Return the costs of an operator on each type of device of the cluster."""
    return [plan.costs.by_op[op, kind] for kind in sorted({device.type for device in plan.cluster.devices})]


def _saved_bytes(plan: PlanFields, op: str) -> float:
    """Return the bytes per sample that an operator, and a loss after it, keep for the backward."""
    loss = max((held.loss_bytes_per_sample for held in _temporaries(plan, op)), default=0.0)
    kept = max(measured(plan, op, row).per_sample for row in _rows(plan, op))
    return (kept + loss) * most_load(plan, op)


def saved_with_casts(plan: PlanFields, op: str, replica: float) -> float:
    """Return the same with what each forward keeps once, such as copies of weights, shared out over its samples."""
    return _saved_bytes(plan, op) + max(measured(plan, op, row).per_forward for row in _rows(plan, op)) / replica


def measured(plan: PlanFields, op: str, row: OpCost) -> SavedBytes:
    """Return what an operator saves for its backward by a row of costs, or else by the graph."""
    work = plan.graph[op].work
    return row.saved or SavedBytes(per_sample=work.saved_bytes_per_sample, per_forward=work.saved_bytes_per_forward)


def most_load(plan: PlanFields, op: str) -> float:
    """Return the largest load that a sample is for an operator; 1 if its load is not declared."""
    declared = [zip(load.loads, load.shares, strict=True) for load in plan.costs.loads if op in load.ops]
    return max((load for pairs in declared for load, share in pairs if share > 0), default=1.0)


def _temporary_bytes(plan: PlanFields, inside: set[str], samples: float) -> float:
    """Return the most bytes that one operator holds in its forward, or in its backward with the arriving gradient."""
    arrives: dict[str, dict[tuple[str, str], float]] = {op: {} for op in inside}
    for edge in plan.graph.edges:
        if edge.source in inside and edge.source in plan.graph.differentiable:
            arriving, constant = arrives[edge.source], plan.graph[edge.source].without_gradient
            values = [(value, count) for *_, value, count in edge.reads if value[1] not in constant]
            arriving |= {value: max(arriving.get(value, 0.0), count) for value, count in values}
    arriving = (
        max(held.forward(computed), held.backward(computed) + sum(arrives[op].values()) * samples)
        for op in inside
        for computed in (samples * most_load(plan, op),)
        for held in _temporaries(plan, op)
    )
    return max(arriving, default=0.0)


def _kept_bytes(
    plan: PlanFields, op: str, inside: set[str], replica: float, recompute: tuple[str, ...], offload: tuple[str, ...]
) -> float:
    """Return the bytes per sample that an operator keeps in a stage that recomputes or offloads some submodules."""
    saved, home = _saved_bytes(plan, op), submodule(op, recompute)
    offloads = bool(submodule(op, offload))
    needed: dict[tuple[str, str], float] = {}  # for the gradient of another stage, or for a recomputation
    read: dict[tuple[str, str], float] = {}  # also by those who save it themselves
    for edge in plan.graph.edges:
        if edge.source != op:
            continue
        there = submodule(edge.target, recompute) if edge.target in inside else ""
        if offloads:  # what is offloaded together does not stay for each other
            leaves = edge.target not in inside or bool(there)
            into = (read, needed) if leaves else () if submodule(edge.target, offload) else (read,)
        elif home and (edge.target not in inside or there != home):
            into = (read,) if edge.target in inside and not there else (read, needed)
        else:
            into = (read, needed) if there and not home else ()
        for values in into:
            values |= {value: max(values.get(value, 0.0), count) for *_, value, count in edge.reads}
    own = 0.0 if home or offloads else saved_with_casts(plan, op, replica)
    return max(own, sum(needed.values()), min(saved, sum(read.values())))


def submodule(op: str, names: tuple[str, ...]) -> str:
    """Return the name that is the operator or a submodule around it; empty if there is not any."""
    return next((name for name in names if op == name or op.startswith(name + ".")), "")
