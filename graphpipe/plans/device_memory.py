"""The memory that the stages of a plan need on their devices."""

from dataclasses import dataclass, replace

from graphpipe.costs import CostModel, StageMemory
from graphpipe.costs.ranks.rank_costs import rank_costs
from graphpipe.costs.stage_memory import BetweenHalves
from graphpipe.plans.plan import Plan
from graphpipe.plans.sharding import common_samples, sender
from graphpipe.plans.stage import Stage


def stage_memory(model: CostModel, stage: Stage) -> StageMemory[float]:
    """Return the memory of one stage on each of its devices, with all versions of its weights.

    Args:
        model: the costs of whole operators. If several devices share a replica, each has the bytes of one rank.
        stage: of the plan.
    """
    samples = stage.micro_batch / stage.degree
    model = model if stage.tensor == 1 else rank_costs(model, stage.replicas)
    memory = model.stage_memory(stage.ops, samples, stage.recompute, stage.state, stage.degree, stage.offload)
    return memory if stage.versions == 1 else replace(memory, state=memory.state + versions_bytes(model, stage))


def between_halves(model: CostModel, stage: Stage) -> BetweenHalves:
    """Return what one stage keeps on each of its devices between the two halves of a split backward.

    Args:
        model: as for `stage_memory`.
        stage: of the plan.
    """
    model = model if stage.tensor == 1 else rank_costs(model, stage.replicas)
    samples = stage.micro_batch / stage.degree
    return model.activations(samples).between_halves(stage.ops, samples)


def more_between_halves(plan: Plan, number: int) -> float:
    """Return the bytes that a sample of a replica needs on each device between the halves of a split backward, beyond
    those of a sample in flight; 0 if the stage does not split its backwards."""
    stage = plan.stages[number]
    if not (stage.may_split and plan.gradient_targets[number]):
        return 0.0
    between = between_halves(plan.cost_model, stage)
    return max(0.0, between.own + between.received - stage_memory(plan.cost_model, stage).per_sample)


def versions_bytes(model: CostModel, stage: Stage) -> float:
    """Return the bytes of the versions of a stage's weights on each device, besides the newest. Frozen weights have
    only one. No devices share a replica of such a stage."""
    return (stage.versions - 1) * model.parameter_bytes.gradients(stage.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideStages:
    """Bytes that a device holds besides its stages."""

    context: float
    workspaces: float
    communicators: float
    reserved: float
    """What the allocator holds besides what is in use."""

    @property
    def total(self) -> float:
        """Their sum."""
        return self.context + self.workspaces + self.communicators + self.reserved


def beside_stages(plan: Plan) -> dict[int, BesideStages]:
    """Return what each device in use holds besides its stages, by the figures of its type.

    There is one workspace, because the tasks of a device share a stream. There are two communicators for each peer with
    which it exchanges messages, one for each sum of gradients that it takes part in, and one of all devices. If several
    devices share a replica, they have one more.
    """
    needed, peers = needed_bytes(plan), _peers(plan)
    sums = [group for stage in plan.stages for group in (*stage.peers, *(stage.replicas if stage.tensor > 1 else ()))]
    sums += [ring for tied in plan.tied_gradients for ring in tied.rings]
    held: dict[int, BesideStages] = {}
    for device in plan.used_devices:
        kind = plan.cluster.type_of(device)
        groups = sum(len(devices) > 1 and device in devices for devices in (*sums, plan.used_devices))
        held[device] = BesideStages(
            context=kind.context_bytes,
            workspaces=kind.workspace_bytes,
            communicators=kind.communicator_bytes * (2 * len(peers[device]) + groups),
            reserved=kind.reserved_share * needed[device],
        )
    return held


def _peers(plan: Plan) -> dict[int, set[int]]:
    """Return the devices with which each device exchanges messages."""
    pairs: set[tuple[int, int]] = set()
    for position, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        sizes = source.micro_batch, source.degree, target.micro_batch, target.degree
        for replica, other, _ in common_samples(plan.batch_size, *sizes).pairs:
            here, there = source.replicas[replica], target.replicas[other]
            pairs |= {(sender(here, device, rank), device) for rank, device in enumerate(there)}
            if position in plan.gradient_edges:
                pairs |= {(sender(there, device, rank), device) for rank, device in enumerate(here)}
    pairs |= {pair for stage in plan.stages for pair in zip(stage.devices, stage.offload_to, strict=False)}
    peers: dict[int, set[int]] = {device: set() for device in plan.used_devices}
    for one, other in pairs:
        if one != other:
            peers[one].add(other)
            peers[other].add(one)
    return peers


def needed_bytes(plan: Plan) -> dict[int, float]:
    """Return the bytes that the stages of each device in use need with all their samples in flight.

    A device runs one task at a time. So among the bytes that its stages hold only while a task runs, only the largest
    amount of one stage counts. What is offloaded to a neighbour counts there. Messages in transit are not counted.
    """
    resident, transient = dict.fromkeys(plan.used_devices, 0.0), dict.fromkeys(plan.used_devices, 0.0)
    for stage in plan.stages:
        memory = stage_memory(plan.cost_model, stage)
        kept, held = memory.resident(stage.in_flight / stage.degree), memory.transient
        for device in stage.devices:
            resident[device] += kept
            transient[device] = max(transient[device], held)
            if (neighbour := stage.neighbour(device)) is not None:
                resident[neighbour] += offloaded_bytes(plan, stage)
    return {device: resident[device] + transient[device] for device in resident}


def offloaded_bytes(plan: Plan, stage: Stage) -> float:
    """Return the bytes that one device of a stage has offloaded, with all its samples in flight."""
    return stage_memory(plan.cost_model, stage).offloaded * stage.in_flight / stage.degree if stage.offload else 0.0


def host_bytes(plan: Plan) -> dict[str, float]:
    """Return the bytes that the stages of each node keep in the node's memory with all their samples in flight."""
    held = dict.fromkeys((device.node for device in plan.cluster.devices), 0.0)
    for stage in (stage for stage in plan.stages if not stage.offload_to):
        offloaded = offloaded_bytes(plan, stage)
        for device in stage.devices:
            held[plan.cluster.devices[device].node] += offloaded
    return held


def spare_bytes(plan: Plan) -> dict[int, float]:
    """Return the free bytes of each device in use (negative if it lacks bytes)."""
    return {device: plan.cluster.type_of(device).memory_bytes - needed for device, needed in needed_bytes(plan).items()}


def memory_shortfall(plan: Plan) -> float:
    """Return how many bytes the fullest device lacks (negative if bytes are free)."""
    if plan.shares_devices or any(stage.offload_to for stage in plan.stages):
        return -min(spare_bytes(plan).values())
    # Each device holds what one stage needs, and the smallest device of a stage lacks most. Searches ask this often.
    return max(stage_shortfall(plan, stage) for stage in plan.stages)


def stage_shortfall(plan: Plan, stage: Stage) -> float:
    """Return how many bytes the smallest of a stage's devices lacks if it hosts no other stage (negative if bytes are
    free)."""
    memory = stage_memory(plan.cost_model, stage)
    needed = memory.resident(stage.in_flight / stage.degree) + max(0.0, memory.transient)
    return needed - _smallest_memory(plan, stage)


def _smallest_memory(plan: Plan, stage: Stage) -> float:
    cluster = plan.cluster
    if len(cluster.types) == 1:
        return cluster.smallest_memory_bytes
    return min(cluster.type_of(device).memory_bytes for device in stage.devices)
