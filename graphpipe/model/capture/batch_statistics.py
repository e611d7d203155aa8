"""Values that mix the samples of a batch: a mean over them, a softmax along them, products of samples with samples.

With micro-batches they would be those of a micro-batch. So what computes them needs the whole mini-batch. A capture
names them: models of towers return such values to losses that do not read them, or get the whole mini-batch. A pipeline
that computes them for parts of a mini-batch refuses the first gradient that reaches them.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from graphpipe.errors import InvalidInput
from graphpipe.graph import Op
from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.capture.module_graph.calls.mixed_samples import mixes
from graphpipe.model.capture.module_graph.module_graph import stand_in
from graphpipe.model.capture.reading import Reading
from graphpipe.model.torch_private import leaf
from graphpipe.user_frames import warn_user


def statistic_of(node: fx.Node, readings: Mapping[fx.Node, Reading]) -> str:
    """Return how a node mixes samples, by the name of an operator; empty if it does not.

    Args:
        node: of a captured graph.
        readings: of every node.
    """
    if node.op == "call_module":
        return str(node.meta.get("statistic", ""))
    if node.op != "call_function" or is_anchor(node) or node.target is stand_in:
        return ""
    made = node.args[0] if node.target is operator.getitem else node  # one of several results
    assert isinstance(made, fx.Node)
    read = [readings[each].shapes for each in made.all_input_nodes if readings[each].dtype.is_floating_point]
    given = [each for each in read if each is not None]
    returned = readings[node].shapes
    if returned is None or not readings[node].dtype.is_floating_point:
        return ""
    return mixes(made.target, made.args, given, [returned])


def warn_of_statistics(
    ops: Iterable[Op], nodes: Mapping[str, Sequence[fx.Node]], readings: Mapping[fx.Node, Reading]
) -> None:
    """Warn of the first operator that mixes samples and does not get the whole mini-batch.

    Args:
        ops: of a graph.
        nodes: of each operator.
        readings: of every node.
    """
    for op in ops:
        for node in () if op.whole_batch else nodes[op.name]:
            if name := statistic_of(node, readings):
                warn_user(". ".join(_what_and_remedy(node, name)) + ".")
                return


def _what_and_remedy(node: fx.Node, name: str) -> tuple[str, str]:
    where = str(node.target) if node.op == "call_module" else node.meta.get("owner", "")
    forward = f"'{where}'" if where else "the model itself"
    remedy = f"Give it the whole mini-batch at once (whole_batch=['{where}'])"
    if not where:
        remedy = "Move that part into a submodule, and name it in `whole_batch`"
    return (
        f"the forward of {forward} mixes the samples of a batch ({name}), and a pipeline computes this for each "
        "micro-batch",
        f"{remedy}, or return what it is computed from, and let loss_fn compute it",
    )


_MEANS = {
    *("mean", "cross_entropy_loss", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
"""Means over samples: that of a mini-batch is the mean of those of its micro-batches."""
_LINEAR = {"add", "sub", "mul", "div", "neg", "to", "_to_copy", "view", "reshape", "squeeze", "alias", "clone"}


def mixed_outputs(
    nodes: Iterable[fx.Node], readings: Mapping[fx.Node, Reading], whole: Callable[[fx.Node], bool]
) -> dict[int, tuple[str, str]]:
    """Return the leaves of the model's output in which samples are mixed, with the reason and the remedy.

    A mean over samples is no such leaf, nor what is linear in means: own losses of models.

    Args:
        nodes: of a captured graph, in order of execution.
        readings: of every node.
        whole: whether a node gets the whole mini-batch.
    """
    mixed: dict[fx.Node, tuple[str, str]] = {}
    means: dict[fx.Node, tuple[str, str]] = {}  # numbers that are means over samples
    for node in nodes:
        if node.op == "output":
            leaves: Any = node.args[0]
            return {at: mixed[each] for at, each in enumerate(leaves) if isinstance(each, fx.Node) and each in mixed}
        if is_anchor(node) or node.target is stand_in:
            continue
        before = next((mixed[each] for each in node.all_input_nodes if each in mixed), None)
        mean = next((means[each] for each in node.all_input_nodes if each in means), None)
        name = "" if whole(node) else statistic_of(node, readings)
        if before is None and not mean and name:
            found = _what_and_remedy(node, name)
            (means if name in _MEANS and readings[node].shape == () else mixed)[node] = found
        elif before is not None:
            mixed[node] = before
        elif mean is not None:
            (means if _is_linear(node, readings) else mixed)[node] = mean
        if node in mixed and node.op == "call_function" and node.target is leaf and _is_beside(node, readings):
            del mixed[node]
    return {}


def _is_linear(node: fx.Node, readings: Mapping[fx.Node, Reading]) -> bool:
    # Whether numbers are added, or multiplied by a constant.
    name = str(getattr(node.target, "overloadpacket", node.name)).rpartition(".")[2]
    weighs = name in ("mul", "div") and len(node.all_input_nodes) > 1
    return readings[node].shape == () and name in _LINEAR and not weighs


def _is_beside(node: fx.Node, readings: Mapping[fx.Node, Reading]) -> bool:
    # Whether a call that mixes samples returns a tensor with samples beside others without: balance losses.
    (call,) = node.all_input_nodes
    returned = [readings[user] for user in call.users]
    grow = [each.grows for each in returned]
    return "statistic" in call.meta and readings[node].grows and not all(grow)


def without_gradient(tensor: Tensor, what: str, remedy: str) -> Tensor:
    """Return a tensor whose backward raises an error, if the loss depends on it.

    Args:
        tensor: an output of the model.
        what: is wrong with its gradient.
        remedy: what the user can do.

    Raises:
        InvalidInput: in the backward.
    """

    def refuse(gradient: Tensor) -> None:
        if torch.count_nonzero(gradient):
            raise InvalidInput(f"{what}, on which the loss depends", where="step", remedy=f"{remedy}.")

    if tensor.requires_grad:
        tensor = tensor.view_as(tensor)  # others may read it, too
        tensor.register_hook(refuse)
    return tensor
