"""The model's outputs as tensors with names, as files hold them."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import Tensor

from graphpipe.run.stage.tensor_tree import leaves

WHOLE = "output"
"""The name of the output of a model that returns one tensor."""


def named_outputs(tree: object) -> dict[str, Tensor]:
    """Return the tensors of a model's output by name: `output`, or the keys and positions that lead to each.

    tensor -> output        (a, b) -> output.0, output.1        {"logits": a, "states": [b]} -> logits, states.0
    """
    if isinstance(tree, Tensor):
        return {WHOLE: tree}
    found: dict[str, Tensor] = {}
    _collect(tree, "", found)
    return found


def _collect(tree: object, name: str, found: dict[str, Tensor]) -> None:
    if isinstance(tree, Tensor):
        found[name] = tree
    elif isinstance(tree, Mapping):
        for key, value in cast("Mapping[Any, object]", tree).items():
            _collect(value, f"{name}.{key}" if name else str(key), found)
    elif isinstance(tree, tuple | list):
        for position, value in enumerate(cast("Iterable[object]", tree)):
            _collect(value, f"{name or WHOLE}.{position}", found)
    else:  # a container that is registered with PyTorch
        for position, leaf in enumerate(leaves(tree)):
            found[f"{name or WHOLE}.{position}"] = leaf
