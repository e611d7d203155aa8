"""Submodules around the inner results that a model of `transformers` is asked to return, such as scores of routers."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def recorded_parts(model: nn.Module, arguments: Mapping[str, object]) -> dict[str, str]:
    """Return the submodules that a trace must look into, so that it sees the results that are recorded inside them.

    These are the paths of all submodules that contain a recorded submodule, each with the name of what it returns.

    Args:
        model: its parts that are models of transformers say which results they can record.
        arguments: of its forward, such as `output_router_logits`. Those that are missing are in the configuration.
    """
    parts: dict[str, str] = {}
    for path, part in model.named_modules():
        for key, kinds in getattr(part, "can_record_outputs", {}).items():
            if arguments.get(f"output_{key}", getattr(part.config, f"output_{key}", False)):
                for kind in kinds if isinstance(kinds, list) else [kinds]:
                    parts |= {around: key for name in _recorded(path, part, kind) for around in _around(name)}
    return parts


def _recorded(path: str, part: nn.Module, kind: Any) -> list[str]:
    # The submodules whose results are recorded: by class, or by the end of their path.
    wanted = getattr(kind, "target_class", kind)
    ending = kind if isinstance(kind, str) else getattr(kind, "class_name", None)
    inside = {f"{path}.{name}" if path else name: inner for name, inner in part.named_modules()}
    return [
        name
        for name, inner in inside.items()
        if (isinstance(wanted, type) and isinstance(inner, wanted)) or (ending and name.endswith(ending))
    ]


def _around(path: str) -> list[str]:
    # The paths of the submodules around a submodule, from outside to inside.
    names = path.split(".")
    return [".".join(names[:count]) for count in range(1, len(names))]
