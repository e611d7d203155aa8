"""What the tasks of a stage hold only while they run, from what its operators do."""

from collections.abc import Collection
from dataclasses import dataclass

from graphpipe.costs.cost_model import CostModel
from graphpipe.costs.recompute_regions import Recompute


@dataclass(frozen=True, slots=True)
class TaskBytes:
    """The most bytes that a task needs beyond what is kept of its micro-batch between forward and backward."""

    forward: float = 0.0
    first_backward: float = 0.0
    """Of a mini-batch: beyond what there is without the gradients of the stage's parameters, which come in it."""
    backward: float = 0.0
    """Of those that follow, and add to these gradients."""


def task_bytes(model: CostModel, ops: Collection[str], samples: float, recompute: Recompute = "none") -> TaskBytes:
    """Return what the tasks of a stage of these operators need for `samples` samples; 0 where the table knows nothing.

    All that is kept of a micro-batch counts as held from the start of its forward to the end of its backward (see
    `CostModel.activation_bytes`, and `recomputed_bytes`). So an operator's temporaries come on top of it less what is
    not yet, or no more, there:

        forward    a > b > [c]   d      what c holds, less what d will save
        backward   a   b   [c] < d      what c holds, and the gradient that came from d, less what d had saved

    Where a stage recomputes some of its operators nothing is taken to be freed early.
    """
    if not model.knows_temporaries:
        return TaskBytes()
    inside = frozenset(ops)
    forward = first = backward = 0.0
    freed = grown = 0.0  # of the operators that follow: what they save, and the gradients of their parameters
    for name in (name for name in reversed(model.graph.order) if name in inside):
        at = model.graph.index[name]
        rows = model.temporaries[at]
        there = max((row.forward(samples) for row in rows), default=0.0)
        handed_on = not inside.isdisjoint(model.graph.successors[name])
        arrived = model.gradient_bytes_per_sample[name] * samples if handed_on else 0.0  # else it is in a buffer
        back = max((row.backward(samples) for row in rows), default=0.0) + arrived
        forward = max(forward, there - freed)
        first = max(first, back - freed + grown)
        backward = max(backward, back - freed)
        freed += float(model.saved_bytes[at]) * samples if recompute in ("none", "full") else 0.0
        grown += float(model.trainable_bytes[at])
    return TaskBytes(forward, first, backward)
