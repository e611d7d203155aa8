"""Values that mix the samples of a batch: a mean over them, a softmax along them, products of samples with samples.

With micro-batches they would be those of a micro-batch. So what computes them needs the whole mini-batch.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from graphpipe.errors import InvalidInput
from graphpipe.graph import Op
from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.capture.module_graph.calls.mixed_samples import mixes
from graphpipe.model.capture.module_graph.module_graph import stand_in
from graphpipe.model.capture.reading import Reading


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


def check_statistics(
    ops: Iterable[Op], nodes: Mapping[str, Sequence[fx.Node]], readings: Mapping[fx.Node, Reading]
) -> None:
    """Check that operators which mix samples get the whole mini-batch.

    Args:
        ops: of a graph.
        nodes: of each operator.
        readings: of every node.

    Raises:
        InvalidInput: an operator does not.
    """
    for op in ops:
        for node in () if op.whole_batch else nodes[op.name]:
            if name := statistic_of(node, readings):
                where = str(node.target) if node.op == "call_module" else node.meta.get("owner", "")
                forward = f"'{where}'" if where else "the model itself"
                remedy = f"Give it the whole mini-batch at once (whole_batch=['{where}'])"
                if not where:
                    remedy = "Move that part into a submodule, and name it in `whole_batch`"
                raise InvalidInput(
                    f"the forward of {forward} mixes the samples of a batch ({name}), and a pipeline would compute "
                    "this for each micro-batch",
                    where="capture",
                    remedy=f"{remedy}, or return what it is computed from, and let loss_fn compute it.",
                )
