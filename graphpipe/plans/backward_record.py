"""The backward of a whole model as autograd recorded it, from which follows which stages cannot split theirs.

A plan for a model of the zoo is made without torch. A schedule that splits backwards needs to know which stages have to
run theirs whole. The record has the structure that decides it (see `graph.backward_graph`): operations, and the places
where a cut between operators of the graph would cut it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ConfigDict

from graphpipe.graph.backward_graph import BackwardGraph
from graphpipe.plans.stage import Stage

At = tuple[int, int]
"""An edge: the number of the operation that it leads to, and the output of that operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutValue:
    """A value with a gradient that goes from one operator of the graph to others."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    """The operator that computes the value."""
    readers: tuple[str, ...]
    """The other operators that read the value."""
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRecord:
    """The operations of a model's backward, numbered from 0."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    children: tuple[tuple[At, ...], ...]
    """Where each operation passes gradients on to."""
    own_backwards: dict[int, str]
    """Names of functions with their own backward, by the number of the operation."""
    values: tuple[CutValue, ...]
    outputs: tuple[At, ...]
    """The model's outputs that have a gradient."""
    output_op: str
    """The operator that returns the model's output."""


def whole_stages(record: BackwardRecord, stages: Sequence[Stage]) -> dict[int, str]:
    """Return why backwards cannot be split, by stage, for the stages where they cannot.

    The loss is assumed to use every output of the model, and no parameter.

    Args:
        record: of the model.
        stages: of a plan for the model's graph.
    """
    reasons = {number: _why_whole(record, frozenset(stage.ops)) for number, stage in enumerate(stages)}
    return {number: reason for number, reason in reasons.items() if reason}


def _why_whole(record: BackwardRecord, ops: frozenset[str]) -> str:
    received = {value.at for value in record.values if value.op not in ops and not ops.isdisjoint(value.readers)}
    ends = [value.at for value in record.values if value.op in ops and not ops.issuperset(value.readers)]
    ends += record.outputs if record.output_op in ops else ()
    # What a stage receives ends its graph. Such a leaf has a negative number.
    leaves = {at: (-1 - number, 0) for number, at in enumerate(sorted(received))}

    def edges_of(node: int) -> tuple[At, ...]:
        return () if node < 0 else tuple(leaves.get(at, at) for at in record.children[node])

    def own_backward(node: int) -> str:
        return record.own_backwards.get(node, "")

    graph = BackwardGraph.of([leaves.get(at, at) for at in ends], [leaf for leaf, _ in leaves.values()], edges_of)
    return graph.why_whole(own_backward)
