"""Linear layers, whose weights are (outputs, inputs), or (inputs, outputs) in the first models of Hugging Face.

They may have low-rank adapters beside them.
"""

from typing import Any

from torch import nn

from graphpipe.model.shards.layers.adapted import adapted_of, is_plain_linear, is_transposed


def is_linear(part: object) -> bool:
    """Return whether a submodule is a linear layer of a known kind, without hooks on its weights."""
    return is_plain_linear(part) or adapted_of(part) is not None


def linear_at(part: object, path: str) -> nn.Module | None:
    """Return the linear layer at a path of attributes below a module; None if there is none."""
    layer: Any = part
    for name in path.split("."):
        layer = getattr(layer, name, None)
    return layer if is_linear(layer) else None


def outputs_of(layer: Any) -> int:
    """Return the number of outputs of a linear layer."""
    found = adapted_of(layer)
    return found.outputs if found is not None else int(layer.weight.shape[1 if is_transposed(layer) else 0])


def inputs_of(layer: Any) -> int:
    """Return the number of inputs of a linear layer."""
    found = adapted_of(layer)
    return found.inputs if found is not None else int(layer.weight.shape[0 if is_transposed(layer) else 1])
