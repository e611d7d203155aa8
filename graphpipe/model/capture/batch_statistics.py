"""Values that mix the samples of a batch: a mean over them, a softmax along them, products of samples with samples.

With micro-batches they would be those of a micro-batch. So what computes them needs the whole mini-batch. Models of
towers return such values to a loss that gets the whole mini-batch, so they are named and not refused.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from graphpipe.graph import Op
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
                where = str(node.target) if node.op == "call_module" else node.meta.get("owner", "")
                forward = f"'{where}'" if where else "the model itself"
                remedy = f"Give it the whole mini-batch at once (whole_batch=['{where}'])"
                if not where:
                    remedy = "Move that part into a submodule, and name it in `whole_batch`"
                warn_user(
                    f"the forward of {forward} mixes the samples of a batch ({name}), and a pipeline computes this for "
                    f"each micro-batch. {remedy}, or return what it is computed from, and let loss_fn compute it."
                )
                return
