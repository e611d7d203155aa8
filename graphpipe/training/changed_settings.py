"""A run that is resumed with other settings: which have changed, and which of them ask for another plan."""

from collections.abc import Iterable
from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.config.sources import leaves
from graphpipe.training.run_folder.run_folder import RunFolder

_PLAN_ALIKE = ("plan.cache", "plan.costs")
"""Settings of the plan that do not ask for another plan."""


def settings_of(folder: RunFolder) -> TrainConfig | None:
    """Return the settings with which a run was started last.

    None if they cannot be read, because an earlier version wrote them.
    """
    try:
        return TrainConfig.load(folder.config)
    except InvalidInput:
        return None


def changed_settings(before: TrainConfig | None, config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from earlier ones (None: not known): their values then and now.

    A setting that one of them does not have is None there. The folder and the name of the run's own folder are left
    out.
    """
    if before is None:
        return {}
    then, now = ({".".join(key): value for key, value in leaves(to_body(each))} for each in (before, config))
    left_out = ("folder", "run.directory", "run.name", "run.port", "train.faults")
    keys = dict.fromkeys((*now, *then))
    values = {key: (then.get(key), now.get(key)) for key in keys if key not in left_out}
    return {key: (was, value) for key, (was, value) in values.items() if was != value}


def asks_for_another_plan(changed: Iterable[str]) -> list[str]:
    """Return the changed settings that a plan depends on."""
    return [key for key in changed if key.startswith("plan.") and key not in _PLAN_ALIKE]


def sentence(changed: dict[str, tuple[Any, Any]], step: int) -> str:
    """Return one line that says what has changed."""
    parts = [f"{key} {_shown(then)} -> {_shown(now)}" for key, (then, now) in changed.items()]
    return f"other settings from step {step + 1} on: {', '.join(parts)}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
