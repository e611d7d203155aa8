"""Submodules whose forward writes into weights: momentum encoders, weights that are clipped."""

from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from graphpipe.errors import InvalidInput
from graphpipe.graph import Op


def check_changes(ops: Iterable[Op], nodes: Mapping[str, Sequence[fx.Node]]) -> None:
    """Check that operators with such a submodule get the whole mini-batch.

    A pipeline would otherwise write once for each micro-batch, and micro-batches whose backward has not run need the
    weights as they were.

    Args:
        ops: of a graph.
        nodes: of each operator.

    Raises:
        InvalidInput: an operator does not.
    """
    for op in ops:
        for node in () if op.whole_batch else nodes[op.name]:
            if "changes" in node.meta:
                raise InvalidInput(
                    f"the forward of '{node.target}' changes the weight '{node.meta['changes'][0]}', and a pipeline "
                    "would run it for each micro-batch",
                    where="capture",
                    remedy=f"Give it the whole mini-batch at once (whole_batch=['{node.target}']), or change the "
                    "weight between steps. If only its first call changes it, run the model once before the capture.",
                )


def check_not_recomputed(nodes: Iterable[fx.Node], stage: str) -> None:
    """Check that what a stage recomputes does not write into weights.

    Args:
        nodes: that it recomputes.
        stage: its name.

    Raises:
        InvalidInput: a call does.
    """
    for node in nodes:
        if "changes" in node.meta:
            what = f"recomputes '{node.target}', whose forward changes the weight '{node.meta['changes'][0]}'"
            raise InvalidInput(what, where=f"stage '{stage}'", remedy="Plan without recomputation of this operator.")
