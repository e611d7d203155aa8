"""A run that is resumed with other settings: which have changed, and how a restored optimizer gets its own."""

from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.training.config.settings import OptimizerSettings, TrainConfig
from graphpipe.training.config.sources import leaves
from graphpipe.training.run_folder.run_folder import RunFolder

_PLAN_ALIKE = ("plan.cache", "plan.costs")
"""Settings of the plan that do not ask for another plan."""


def changed_settings(folder: RunFolder, config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those with which a run was started: their values then and now.

    The folder and the name of the run's own folder are left out. A run whose configuration cannot be read, because an
    earlier version wrote it, has no changes.
    """
    try:
        before = TrainConfig.load(folder.config)
    except InvalidInput:
        return {}
    then, now = ({".".join(key): value for key, value in leaves(to_body(each))} for each in (before, config))
    left_out = ("folder", "run.directory", "run.name", "run.port", "train.faults")
    return {key: (then.get(key), value) for key, value in now.items() if then.get(key) != value and key not in left_out}


def asks_for_another_plan(changed: Iterable[str]) -> list[str]:
    """Return the changed settings that a plan depends on."""
    return [key for key in changed if key.startswith("plan.") and key not in _PLAN_ALIKE]


def sentence(changed: dict[str, tuple[Any, Any]], step: int) -> str:
    """Return one line that says what has changed."""
    parts = [f"{key} {_shown(then)} -> {_shown(now)}" for key, (then, now) in changed.items()]
    return f"other settings from step {step + 1} on: {', '.join(parts)}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def apply_settings(optimizers: Iterable[ScheduledOptimizer], settings: OptimizerSettings) -> None:
    """Give restored optimizers and schedules the options of a configuration, which a checkpoint has overwritten.

    The schedule's shape is that of the configuration anyway. Its learning rate continues at the present step.
    """
    for scheduled in optimizers:
        schedule = scheduled.scheduler
        assert isinstance(schedule, LambdaLR), "a configuration's schedule"
        schedule.base_lrs = [settings.lr] * len(schedule.base_lrs)
        for group, share in zip(scheduled.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["initial_lr"], group["weight_decay"] = settings.lr, settings.weight_decay
            group["lr"] = settings.lr * share(schedule.last_epoch)
            if "momentum" in group:
                group["momentum"] = settings.momentum
