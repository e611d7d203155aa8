"""Layers that a module holds in a list or dict of Python's: PyTorch does not know them, and nothing trains them."""

import warnings
from collections.abc import Iterable, Mapping
from typing import cast

from torch import nn


def warn_of_hidden(module: nn.Module) -> None:
    """Warn of trainable parameters in Python lists, tuples and dicts, unless they are registered elsewhere too."""
    known = {id(parameter) for parameter in module.parameters()}
    for path, holder in module.named_modules():
        for name, value in vars(holder).items():
            hidden = [
                parameter
                for part in _modules_in(value) * (not name.startswith("_"))
                for parameter in part.parameters()
                if parameter.requires_grad and id(parameter) not in known
            ]
            if hidden:
                count = f"{sum(parameter.numel() for parameter in hidden):,}"
                where = f"{path}.{name}" if path else name
                warnings.warn(
                    f"'{where}' holds layers with {count} parameters in a Python {type(value).__name__}, which PyTorch "
                    "does not know: they are not trained. Use nn.ModuleList or nn.ModuleDict",
                    stacklevel=4,
                )


def _modules_in(value: object) -> list[nn.Module]:
    parts = cast("Mapping[object, object]", value).values() if isinstance(value, dict) else value
    if not isinstance(value, list | tuple | dict):
        return []
    return [part for part in cast("Iterable[object]", parts) if isinstance(part, nn.Module)]
