"""What a training would do, found without training: its steps, plan, memory and disk."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from graphpipe.devices.registry import default_kind
from graphpipe.plans import Plan
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.weight_update import optimizers_of
from graphpipe.training.config.parameter_groups import ParameterGroups
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.prepare import check_names, plan_training
from graphpipe.training.task.factories import optimizer_factory
from graphpipe.training.task.task import Task, load_task
from graphpipe.units import format_bytes
from graphpipe.waiting import waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a training would do, and what would go wrong."""

    plan: Plan
    steps: int
    parameters: int
    """Numbers of the model that are trained."""
    groups: tuple[tuple[int, str], ...]
    """How many parameters (tensors) each group of the optimizer has, and its options in words. Empty if the task builds
    its optimizer."""
    evaluations: int
    checkpoints: int
    checkpoint_bytes: int | None
    """Bytes of one checkpoint; None if the state of the optimizer is not known before its first step."""
    disk_bytes: int | None
    """The most that the run's folder takes at a time, without logs."""
    disk_free_bytes: int
    memory_bytes: float
    """Predicted peak of all processes on this machine; 0 if the plan is for other devices than this machine has."""
    memory_free_bytes: float
    problems: tuple[str, ...]
    """What would fail, as sentences; empty if nothing would."""


def dry_run(config: TrainConfig, *, plan: str | None, tell: Callable[[str], None]) -> DryRun:
    """Load the task, check it and its data, plan, and say what a training would do. Nothing but caches is written.

    Args:
        config: of the training.
        plan: a file of a plan, instead of making one.
        tell: called with a line for what takes a while.

    Raises: as `graphpipe.train`, before its ranks start.
    """
    check_names(config)
    with waiting("loading the task"):
        task = load_task(config.task, config.folder, config.train.seed)
    groups = _groups(config, task)
    checkpoint = _checkpoint_bytes(config, task)
    planned = plan_training(config, task, tell=tell, plan=plan)
    weights = _bytes([*task.model.state_dict().values()])
    disk, free = _disk_bytes(config, checkpoint, weights), _free_bytes(Path(config.run.directory))
    memory, available = _memory(planned.plan)
    settings, steps = config.train, planned.steps
    return DryRun(
        plan=planned.plan,
        steps=steps,
        parameters=sum(each.numel() for each in task.model.parameters() if each.requires_grad),
        groups=groups,
        evaluations=0 if task.held_out is None else _times(settings.eval_every, steps) + 1,
        checkpoints=0 if settings.checkpoint_every is None else _times(settings.checkpoint_every, steps) + 1,
        checkpoint_bytes=checkpoint,
        disk_bytes=disk,
        disk_free_bytes=free,
        memory_bytes=memory,
        memory_free_bytes=available,
        problems=tuple(_problems(config, disk, free, memory, available)),
    )


def _times(every: int | None, steps: int) -> int:
    # How often something happens before the last step.
    return 0 if every is None else (steps - 1) // every


def _groups(config: TrainConfig, task: Task) -> tuple[tuple[int, str], ...]:
    if task.optimizer is not None:
        return ()
    groups = ParameterGroups.of(config.optimizer, task.model)
    rows: list[tuple[int, str]] = []
    for numbers, names in groups.members().items():
        options = [f"{key} {value}" for key, value in config.optimizer.of_groups(numbers).items()]
        kind = [config.optimizer.name_of(numbers)] if len(config.optimizer.names) > 1 else []
        rows.append((len(names), ", ".join([*kind, *options])))
    return tuple(rows)


def _checkpoint_bytes(config: TrainConfig, task: Task) -> int | None:
    """Return the bytes of weights, buffers, averages and the optimizer's state, which is found without data."""
    named = [(name, each) for name, each in task.model.named_parameters() if each.requires_grad]
    copies = [(name, nn.Parameter(torch.empty_like(each, device="meta"))) for name, each in named]
    for _, copy in copies:
        copy.grad = torch.empty_like(copy)
    factory = optimizer_factory(config, task)
    try:
        with without_compiler():
            optimizers = optimizers_of(factory, copies)
            for optimizer in optimizers:
                optimizer.step()
    except Exception:  # An optimizer may need values: those of Muon are not computed without data.
        return None
    kept = [each for optimizer in optimizers for each in optimizer.state.values()]
    state = [value for slots in kept for value in slots.values() if isinstance(value, Tensor)]
    averages = [each for _, each in named] if config.evaluation.average_decay is not None else []
    return _bytes([*task.model.state_dict().values(), *state, *averages])


def _bytes(tensors: list[Tensor]) -> int:
    distinct = {id(each): each.nbytes for each in tensors if isinstance(each, Tensor)}  # pyright: ignore
    return sum(distinct.values())


def _disk_bytes(config: TrainConfig, checkpoint: int | None, weights: int) -> int | None:
    # A checkpoint is removed only after the next one is complete.
    averaged = config.evaluation.average_decay is not None
    final = weights * (2 if averaged else 1)
    kept = 0 if config.train.checkpoint_every is None else config.train.keep + 1
    kept += 2 * config.evaluation.keep_best
    if not kept:
        return final
    return None if checkpoint is None else final + kept * checkpoint


def _free_bytes(directory: Path) -> int:
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _memory(plan: Plan) -> tuple[float, float]:
    # Predicted and available bytes of this machine, if the plan is for processes on it.
    if not plan.cluster.on_processors or plan.prediction is None:
        return 0.0, 0.0
    kind = default_kind()
    if not kind.on_host:
        return 0.0, 0.0
    return sum(plan.prediction.peak_bytes), kind.available_bytes(torch.device("cpu"))


def _problems(config: TrainConfig, disk: int | None, free: int, memory: float, available: float) -> list[str]:
    found: list[str] = []
    if disk is not None and disk > free:
        found.append(
            f"the run needs {format_bytes(disk)} in {config.run.directory}, and {format_bytes(free)} is free: make "
            "room, lower train.keep, or set run.directory"
        )
    if memory > available:
        found.append(
            f"the ranks need {format_bytes(memory)} of memory, and {format_bytes(available)} is available: free "
            "memory, lower train.batch_size, or plan for more machines"
        )
    return found
