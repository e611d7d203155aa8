"""Linear layers, whose weights are (outputs, inputs), or (inputs, outputs) in the first models of Hugging Face."""

from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

_TRANSPOSED = "Conv1D"


def is_linear(part: object) -> bool:
    """Return whether a submodule is a linear layer of a known kind, without hooks on its weights."""
    return type(part) in (nn.Linear, NonDynamicallyQuantizableLinear) or is_transposed(part)


def is_transposed(part: object) -> bool:
    """Return whether it is the linear layer of `transformers` that has its weight as (inputs, outputs)."""
    kind = type(part)
    return kind.__name__ == _TRANSPOSED and kind.__module__ == "transformers.pytorch_utils"


def linear_at(part: object, path: str) -> nn.Module | None:
    """Return the linear layer at a path of attributes below a module; None if there is none."""
    layer: Any = part
    for name in path.split("."):
        layer = getattr(layer, name, None)
    return layer if is_linear(layer) else None


def outputs_of(layer: Any) -> int:
    """Return the number of outputs of a linear layer."""
    return int(layer.weight.shape[1 if is_transposed(layer) else 0])


def inputs_of(layer: Any) -> int:
    """Return the number of inputs of a linear layer."""
    return int(layer.weight.shape[0 if is_transposed(layer) else 1])
