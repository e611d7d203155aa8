"""The memory that the stages of a plan need on their devices."""

from dataclasses import replace

from graphpipe.costs import CostModel, StageMemory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


def stage_memory(model: CostModel, stage: Stage) -> StageMemory[float]:
    """Return the memory of one stage on each of its devices, with all versions of its weights."""
    samples = stage.micro_batch / stage.degree
    memory = model.stage_memory(stage.ops, samples, stage.recompute, stage.state, stage.degree, stage.offload)
    return memory if stage.versions == 1 else replace(memory, state=memory.state + versions_bytes(model, stage))


def versions_bytes(model: CostModel, stage: Stage) -> float:
    """Return the bytes of the versions of a stage's weights on each device, besides the newest. Frozen weights have
    only one."""
    return (stage.versions - 1) * model.parameter_bytes.gradients(stage.ops)


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
