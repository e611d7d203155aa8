"""The memory of a stage's processes by phase: while they start, train and save."""

from dataclasses import dataclass

from graphpipe.plans import Plan, Stage
from graphpipe.plans.device_memory import stage_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """Bytes on the replica of a stage that has most. On a GPU those of `starting`, of copies and of gathered optimizer
    state are in the memory of the host."""

    stage: str
    starting: float
    """Its own weights, which are read or drawn one tensor at a time. Before replicas shard them, they have them twice:
    in the user's module, and in the copy of it that becomes shards."""
    training: float
    """The most in a step."""
    saving: float
    """Between two steps, with one tensor that is gathered or copied at a time. If replicas shard their state, they have
    the whole weights too, and the first of them the whole optimizer state, which it writes."""
    copying: float
    """The same while a checkpoint is written in the background: with a copy of the weights, and of the optimizer state
    that is not gathered."""


def phase_memory(plan: Plan) -> list[PhaseMemory]:
    """Return the memory by phase of every stage of a plan that trains."""
    return [_of_stage(plan, number, stage) for number, stage in enumerate(plan.stages)]


def _of_stage(plan: Plan, number: int, stage: Stage) -> PhaseMemory:
    costs, memory = plan.costs_of(number).parameter_bytes, stage_memory(plan.cost_model, stage)
    weights, trainable = costs.weights(stage.ops), costs.gradients(stage.ops)
    tensor = max(plan.graph[op].parameter_bytes for op in stage.ops)
    shards = stage.degree if stage.state in ("all", "layers") else 1
    slots = costs.op_bytes.slots_per_byte * trainable
    between = memory.state if shards == 1 else weights + (weights + trainable + slots) / shards
    saving = between + tensor + (slots if shards > 1 else 0.0)
    return PhaseMemory(
        stage=stage.name,
        starting=weights * (1 if shards == 1 else 2) + tensor,
        training=float(memory.total(stage.in_flight / stage.degree)),
        saving=saving,
        copying=saving + weights + (0.0 if shards > 1 else max(0.0, memory.state - weights - trainable)),
    )
