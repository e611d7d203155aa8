"""Which losses are exact over micro-batches: sums of means over labels or samples, with constant weights."""

from typing import Any

import torch
from torch import fx

from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.hidden.untraced_losses import CTC
from graphpipe.model.torch_private import reads_no_values

CROSS_ENTROPY = torch.ops.aten.cross_entropy_loss.default
MEANS = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "binary_cross_entropy_with_logits": 4}
"""Means over samples with equal numbers of terms, and the position of their argument `reduction`."""
ARRANGING = {
    *("_to_copy", "to", "contiguous", "clone", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose"),
    *("permute", "slice", "select", "pad", "constant_pad_nd", "type_as", "detach", "alias", "lift_fresh_copy"),
    *("sym_size", "one_hot", "clamp", "add", "sub", "mul", "div", "neg"),
}
"""Operators that a loss may apply to scores and labels before it takes a mean."""
ROW_BY_ROW = {"log_softmax", "softmax"}
"""Operators that it may apply to scores along a dimension that is not samples."""
COUNTING = {"sum", "any", "all", "cumsum", "amax", "argmax"}
"""Operators that it may apply to labels along a dimension that is not samples, as to count them."""
ELEMENTWISE = {"__and__", "__or__", "__xor__", "floor_divide", "ones", "zeros", "full", "arange", "expand"}
"""Operators on single elements that torch does not mark as such, and constants."""
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
    return node.target in (CROSS_ENTROPY, CTC) or _name(node) in MEANS


def is_counted(node: fx.Node) -> bool:
    """True for a mean over labels that count, and for a sum over samples: their weights depend on the mini-batch."""
    return node.target is CROSS_ENTROPY or (node.target is CTC and node.args[5] == "sum")


def why_not_exact(node: fx.Node, means: set[fx.Node], given: set[fx.Node]) -> str:
    """Return why a loss with this node may differ from the sum over parts of the mini-batch; empty if it does not.

    Args:
        node: between scores or labels and the loss.
        means: the means before it, and values computed from them.
        given: labels and other inputs, and values computed from nothing else.
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
    if node in given and _keeps_rows(node):
        return ""
    if name in ROW_BY_ROW and _along_others(node):
        return ""
    return "" if name in ARRANGING else f"computes its loss with {name}, which is not known to keep a mean over samples"


def why_not_mean(node: fx.Node) -> str:
    """Return why an operator is not a mean with equal weights; empty if it is."""
    name, entropy = _name(node), node.target is CROSS_ENTROPY
    if node.target is CTC:
        return "" if node.args[5] in ("mean", "sum") else "computes a CTC loss for each sample"
    if entropy and argument(node, 2, "weight", None) is not None:
        return "weighs the classes in its loss"
    plain = argument(node, 3 if entropy else MEANS[name], "reduction", MEAN) == MEAN
    return "" if plain else f"computes its loss with {name} that is not a mean"


def _keeps_rows(node: fx.Node) -> bool:
    # Whether each row of the result of an operator on labels depends on the same row of the labels. A CTC loss knows by
    # their lengths which of the selected labels belong to which sample.
    name = _name(node)
    if name == "masked_select":
        return all(user.target is CTC and user.args[1] is node for user in node.users)
    if name in COUNTING or name == "cat":  # as of the labels of prompts and of texts
        return _along_others(node)
    return (
        name in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()) or reads_no_values(node.target)
    )


def _along_others(node: fx.Node) -> bool:
    # Whether an operator works along one dimension that is not samples.
    read = node.args[0]
    read = read[0] if isinstance(read, list) else read
    meta = read.meta if isinstance(read, fx.Node) else {}
    dim: Any = argument(node, 1, "dim", None)
    dim = dim[0] if isinstance(dim, list) and len(dim) == 1 else dim  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    known = isinstance(dim, int) and meta.get("dimensions")
    return bool(known) and dim % meta["dimensions"] not in meta["samples_in"]


def _keeps_samples(node: fx.Node) -> bool:
    # A slice may take all of the first dimension, and a selection cannot.
    if argument(node, 1, "dim", 0) != 0:
        return True
    end = argument(node, 3, "end", END)
    return _name(node) == "slice" and not argument(node, 2, "start", 0) and (end is None or end >= END)


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """Return an argument of a node that was given by position, by name or not at all."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
