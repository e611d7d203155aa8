"""Layers in a Python list or dict: PyTorch does not register them, so that they are never trained."""

from collections.abc import Iterable, Mapping
from typing import cast

from torch import nn

from graphpipe.user_frames import warn_user


def warn_of_unregistered_layers(module: nn.Module) -> None:
    """Warn of trainable parameters in Python lists, tuples and dicts that are not registered elsewhere."""
    registered = {id(parameter) for parameter in module.parameters()}
    for path, holder in module.named_modules():
        for name, value in vars(holder).items():
            unregistered = [
                parameter
                for part in _modules_in(value) * (not name.startswith("_"))
                for parameter in part.parameters()
                if parameter.requires_grad and id(parameter) not in registered
            ]
            if unregistered:
                count = f"{sum(parameter.numel() for parameter in unregistered):,}"
                where = f"{path}.{name}" if path else name
                warn_user(
                    f"'{where}' holds layers with {count} parameters in a Python {type(value).__name__}, where PyTorch "
                    "does not find them: they are not trained. Use nn.ModuleList or nn.ModuleDict"
                )


def _modules_in(value: object) -> list[nn.Module]:
    parts = cast("Mapping[object, object]", value).values() if isinstance(value, dict) else value
    if not isinstance(value, list | tuple | dict):
        return []
    return [part for part in cast("Iterable[object]", parts) if isinstance(part, nn.Module)]
