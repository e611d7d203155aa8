"""Values that mix the samples of a batch: a mean over them, a softmax along them, products of samples with samples.

With micro-batches they would be those of a micro-batch. So what computes them needs the whole mini-batch. Some are
exact all the same, and others are never read, so a capture names them. A pipeline refuses in its first step those on
which the loss depends (see `divided_forward`).
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import fx

from graphpipe.graph import Mixing, Op
from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.capture.module_graph.calls.mixed_samples import mixes
from graphpipe.model.capture.module_graph.module_graph import stand_in
from graphpipe.model.capture.reading import Reading
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


def with_statistics(
    ops: Iterable[Op], nodes: Mapping[str, Sequence[fx.Node]], readings: Mapping[fx.Node, Reading]
) -> tuple[Op, ...]:
    """Return operators with how they mix samples, unless they get the whole mini-batch.

    Args:
        ops: of a graph.
        nodes: of each operator.
        readings: of every node.
    """
    return tuple(op if op.whole_batch else replace(op, mixes=_mixing(nodes[op.name], readings)) for op in ops)


def _mixing(nodes: Iterable[fx.Node], readings: Mapping[fx.Node, Reading]) -> Mixing | None:
    for node in nodes:
        if name := statistic_of(node, readings):
            where = str(node.target) if node.op == "call_module" else node.meta.get("owner", "")
            return Mixing(where=where, operator=name)
    return None


def what_and_remedy(mixing: Mixing) -> tuple[str, str]:
    """Return what is wrong with mixing the samples of a part of the mini-batch, and what to do."""
    forward = f"'{mixing.where}'" if mixing.where else "the model itself"
    remedy = f"Give it the whole mini-batch at once (whole_batch=['{mixing.where}'])"
    if not mixing.where:
        remedy = "Move that part into a submodule, and name it in `whole_batch`"
    operator = f" ({mixing.operator})" if mixing.operator else ""
    return (
        f"the forward of {forward} mixes the samples of a batch{operator}, and a pipeline computes this for each "
        "micro-batch",
        f"{remedy}, or return what it is computed from, and let loss_fn compute it.",
    )


def warn_of_statistics(ops: Iterable[Op]) -> None:
    """Warn of the first operator that mixes samples and does not get the whole mini-batch."""
    if mixing := next((op.mixes for op in ops if op.mixes), None):
        warn_user(". ".join(what_and_remedy(mixing)))
