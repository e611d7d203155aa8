"""The memory that the tasks of a stage hold only while they run."""

from collections.abc import Collection
from dataclasses import dataclass

from graphpipe.costs.op_bytes import OpBytes
from graphpipe.costs.recompute_regions import Recompute


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """The most bytes that a task needs beyond what is kept of its micro-batch between forward and backward."""

    forward: float = 0.0
    first_backward: float = 0.0
    """The first backward of a mini-batch. It allocates the parameters' gradients, which are counted separately."""
    backward: float = 0.0
    """Later backwards, which add to these gradients."""

    @staticmethod
    def of(each: OpBytes, ops: Collection[str], samples: float, recompute: Recompute = "none") -> "TaskMemory":
        """Return the memory of the tasks of a stage; 0 if the cost table does not record temporaries.

        Everything kept of a micro-batch counts as held from the start of its forward to the end of its backward (see
        `StageMemory`). An operator's temporaries are added to it, less what is not allocated yet or already freed:

            forward    a > b > [c]   d      temporaries of c, less what d will save
            backward   a   b   [c] < d      temporaries of c and the gradient from d, less what d had saved

        If a stage recomputes only some of its operators, nothing counts as freed early.

        Args:
            each: bytes of every operator.
            ops: of the stage.
            samples: of one micro-batch on one device.
            recompute: what the stage recomputes.
        """
        if not each.has_temporaries:
            return TaskMemory()
        inside, graph = frozenset(ops), each.graph
        forward = first = backward = 0.0
        freed = grown = 0.0  # bytes that later operators save, and bytes of their parameters' gradients
        for name in (name for name in reversed(graph.order) if name in inside):
            at = graph.index[name]
            rows = each.temporaries[at]
            computed = samples * each.largest_load[name]
            passing = max((row.forward(computed) for row in rows), default=0.0)
            handed_on = not inside.isdisjoint(graph.successors[name])
            arrived = (
                each.returned_gradient[name] * samples if handed_on else 0.0
            )  # otherwise it is in a message buffer
            returning = max((row.backward(computed) for row in rows), default=0.0) + arrived
            forward = max(forward, passing - freed)
            first = max(first, returning - freed + grown)
            backward = max(backward, returning - freed)
            freed += float(each.saved[at]) * samples if recompute in ("none", "full") else 0.0
            grown += float(each.trainable[at])
        return TaskMemory(forward, first, backward)
