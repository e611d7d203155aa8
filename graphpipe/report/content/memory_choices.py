"""What the stages of a plan keep, recompute and offload, and what that costs."""

from dataclasses import dataclass, replace

from graphpipe.plans import Plan, Stage
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.estimates import offload_seconds
from graphpipe.simulator import step_seconds
from graphpipe.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """What a stage does with the activations of a micro-batch on each device, in bytes and seconds."""

    stage: str
    kept_bytes: float
    recomputed_bytes: float
    recompute_seconds: float
    """Seconds that recomputation adds to each backward."""
    offloaded_bytes: float
    copy_seconds: float
    """Seconds of the copies out and back. They run beside tasks if the device can copy meanwhile."""
    neighbours: tuple[str, ...] = ()
    """The devices that it is offloaded to; empty: it is offloaded to the memory of the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoices:
    """The choices of all stages that recompute or offload."""

    stages: tuple[MemoryChoice, ...]
    step_seconds: float
    keeping_seconds: float
    """Seconds of a step of the same stages if they had the memory to keep everything."""


def memory_choices(plan: Plan) -> MemoryChoices | None:
    """Return the choices of a plan that trains; None if all its stages keep everything."""
    if not plan.trains or not any(stage.offload or stage.recompute != "none" for stage in plan.stages):
        return None
    keeping = replace(plan, stages=tuple(stage.keeping for stage in plan.stages))
    return MemoryChoices(
        stages=tuple(_choice(plan, stage, whole) for stage, whole in zip(plan.stages, keeping.stages, strict=True)),
        step_seconds=step_seconds(plan),
        keeping_seconds=step_seconds(keeping),
    )


def choice_lines(choices: MemoryChoices) -> list[str]:
    """Return a sentence for each stage that does not keep everything, and one about the step."""
    lines: list[str] = []
    for choice in choices.stages:
        parts = [f"keeps {format_bytes(choice.kept_bytes)}"]
        if choice.recomputed_bytes:
            seconds = format_seconds(choice.recompute_seconds)
            parts.append(f"recomputes {format_bytes(choice.recomputed_bytes)} in {seconds}")
        if choice.offloaded_bytes:
            seconds = format_seconds(choice.copy_seconds)
            to = f" to {', '.join(choice.neighbours)}" if choice.neighbours else ""
            parts.append(f"offloads {format_bytes(choice.offloaded_bytes)}{to} with {seconds} of copies")
        if len(parts) > 1:
            lines.append(f"{choice.stage}, per micro-batch: {', '.join(parts)}")
    added = choices.step_seconds - choices.keeping_seconds
    change = f"{format_seconds(abs(added))} {'shorter' if added >= 0 else 'longer'}"
    return [*lines, f"with the memory to keep everything, the step would be {change}"]


def _choice(plan: Plan, stage: Stage, keeping: Stage) -> MemoryChoice:
    samples, model = stage.micro_batch / stage.degree, plan.costs_of(plan.stages.index(stage))
    memory, whole = stage_memory(plan.cost_model, stage), stage_memory(plan.cost_model, keeping)
    device = stage.devices[0]
    seconds = model.task_seconds(stage.ops, device, samples, stage.recompute).backward
    plain = model.task_seconds(stage.ops, device, samples).backward
    return MemoryChoice(
        stage=stage.name,
        kept_bytes=memory.saved * samples,
        recomputed_bytes=max(0.0, whole.saved - memory.saved - memory.offloaded) * samples,
        recompute_seconds=seconds - plain,
        offloaded_bytes=memory.offloaded * samples,
        copy_seconds=2 * offload_seconds(plan, stage),
        neighbours=tuple(plan.cluster.devices[device].name for device in stage.offload_to),
    )
