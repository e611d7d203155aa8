"""Which losses are exact over micro-batches: sums of means over labels or samples, with constant weights."""

from typing import Any

import torch
from torch import fx

from graphpipe.model.capture.crossing_values import is_anchor

CROSS_ENTROPY = torch.ops.aten.cross_entropy_loss.default
MEANS = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "binary_cross_entropy_with_logits": 4}
"""Means over samples with equal numbers of terms, and the position of their argument `reduction`."""
ARRANGING = {
    *("_to_copy", "to", "contiguous", "clone", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose"),
    *("permute", "slice", "select", "pad", "constant_pad_nd", "type_as", "detach", "alias", "lift_fresh_copy"),
    *("sym_size", "one_hot", "clamp", "add", "sub", "mul", "div", "neg"),
}
"""Operators that a loss may apply to scores and labels before it takes a mean."""
COMBINING = {"_to_copy", "to", "view", "reshape", "squeeze", "alias", "add", "sub", "mul", "div", "neg"}
"""Operators that it may apply to means: addition with constant weights."""
MEAN = 1
END = 2**63 - 1
"""The end of a slice that includes the last element."""


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.name)).rpartition(".")[2]


def is_number(node: fx.Node) -> bool:
    """True for a value without dimensions, which an operator computes from the whole mini-batch."""
    return node.meta.get("dimensions") == 0


def is_mean(node: fx.Node) -> bool:
    """True for an operator that is a mean over labels or samples, unless `why_not_mean` gives a reason."""
    return node.target is CROSS_ENTROPY or _name(node) in MEANS


def why_not_exact(node: fx.Node, means: set[fx.Node]) -> str:
    """Return why a loss with this node may differ from the sum over parts of the mini-batch; empty if it does not.

    Args:
        node: between scores or labels and the loss.
        means: the means before it, and values computed from them.
    """
    name = _name(node)
    if is_anchor(node):
        return ""
    if node.op != "call_function":
        return f"reads '{node.target}' in its loss"
    if not means.isdisjoint(node.all_input_nodes):
        weighs = name in ("mul", "div") and any(isinstance(each, fx.Node) for each in node.args[1:])
        mixes = name in ("add", "sub") and not means.issuperset(node.all_input_nodes)
        plain = name in COMBINING and not weighs and not mixes
        return "" if plain else f"does {name} with the means in its loss, which is not exact over micro-batches"
    if is_mean(node):
        return ""
    if name in ("slice", "select") and not _keeps_samples(node):
        return "leaves samples out of its loss"
    return "" if name in ARRANGING else f"computes its loss with {name}, which is not known to keep a mean over samples"


def why_not_mean(node: fx.Node) -> str:
    """Return why an operator is not a mean with equal weights; empty if it is."""
    name, entropy = _name(node), node.target is CROSS_ENTROPY
    if entropy and argument(node, 2, "weight", None) is not None:
        return "weighs the classes in its loss"
    plain = argument(node, 3 if entropy else MEANS[name], "reduction", MEAN) == MEAN
    return "" if plain else f"computes its loss with {name} that is not a mean"


def _keeps_samples(node: fx.Node) -> bool:
    # A slice may take all of the first dimension, and a selection cannot.
    if argument(node, 1, "dim", 0) != 0:
        return True
    end = argument(node, 3, "end", END)
    return _name(node) == "slice" and not argument(node, 2, "start", 0) and (end is None or end >= END)


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """Return an argument of a node that was given by position, by name or not at all."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
