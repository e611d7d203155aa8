"""Layers whose inner results a model of `transformers` is asked to return, such as the scores of its routers."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def recorded_parts(model: nn.Module, layers: Sequence[str], arguments: Mapping[str, object]) -> list[str]:
    """Return the submodules that must be split, so that a trace sees the results that are recorded inside layers.

    These are the layers and the submodules of layers that contain a recorded submodule.

    Args:
        model: of transformers. Its parts say which results they can record.
        layers: paths of its layers.
        arguments: of its forward, such as `output_router_logits`. Those that are missing are in the configuration.
    """
    found: dict[str, None] = {}
    for path, part in model.named_modules():
        for key, kinds in getattr(part, "can_record_outputs", {}).items():
            if arguments.get(f"output_{key}", getattr(part.config, f"output_{key}", False)):
                for kind in kinds if isinstance(kinds, list) else [kinds]:
                    found |= dict.fromkeys(each for name in _recorded(path, part, kind) for each in _around(name))
    return [path for path in found if any(path == layer or path.startswith(layer + ".") for layer in layers)]


def _recorded(path: str, part: nn.Module, kind: Any) -> list[str]:
    # The submodules whose results are recorded: by class, or by the end of their path.
    wanted = getattr(kind, "target_class", kind)
    ending = kind if isinstance(kind, str) else getattr(kind, "class_name", None)
    inside = {f"{path}.{name}" if path else name: each for name, each in part.named_modules()}
    return [
        name
        for name, each in inside.items()
        if (isinstance(wanted, type) and isinstance(each, wanted)) or (ending and name.endswith(ending))
    ]


def _around(path: str) -> list[str]:
    # The paths of the submodules around a submodule, from outside to inside.
    names = path.split(".")
    return [".".join(names[:count]) for count in range(1, len(names))]
