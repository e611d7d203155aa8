"""Whether a plan's graph is that of a captured model. Their operators may count work differently.

A graph of the zoo, or a plan that another version of torch made, has the figures that that version counted. The stages
of a plan follow from the operators, the parameters and the values between them.
"""

from dataclasses import replace

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Op, Work
from graphpipe.model.capture.capture import Captured
from graphpipe.user_frames import warn_user

_FIELDS = ("kind", "parameters", "parameter_bytes", "trainable", "whole_batch", "output_bytes_per_sample")


def with_graph_of(captured: Captured, graph: Graph) -> Captured:
    """Return a captured model with the graph of a plan. A difference of work is only a warning.

    Args:
        captured: from the model, and split as the plan splits it.
        graph: of the plan.

    Raises:
        InvalidInput: the graph is that of another model.
    """
    if captured.graph.fingerprint == graph.fingerprint:
        return captured
    if _without_work(captured.graph).fingerprint != _without_work(graph).fingerprint:
        raise other_model(_difference(graph, captured.graph))
    op = next((each for each in graph.ops if each.work != captured.graph[each.name].work), None)
    if op is not None:
        warn_user(
            f"the plan counts other work than this model has, as of operator '{op.name}', so its times may be wrong: "
            "another version of torch or of the model made it. Plan again to count anew."
        )
    return replace(captured, graph=graph)


def other_model(difference: str) -> InvalidInput:
    """Return the error for a plan that does not fit a model."""
    remedy = "Capture this model and plan again."
    return InvalidInput(f"the plan was made for another model: {difference}", where="split", remedy=remedy)


def _without_work(graph: Graph) -> Graph:
    origin = graph.origin and replace(
        graph.origin, split_ops=tuple(replace(each, flops_per_sample=0.0) for each in graph.origin.split_ops)
    )
    return replace(graph, ops=tuple(replace(op, work=Work()) for op in graph.ops), origin=origin)


def _difference(plan: Graph, model: Graph) -> str:
    for op in plan.ops:
        if op.name not in model.index:
            return f"this model has no operator '{op.name}'"
    for op in model.ops:
        if op.name not in plan.index:
            return f"the plan has no operator '{op.name}'"
    for field in _FIELDS:
        for op in plan.ops:
            if difference := _of_field(op, model[op.name], field):
                return difference
    return "their operators are connected differently"


def _of_field(ours: Op, theirs: Op, field: str) -> str:
    planned, here = getattr(ours, field), getattr(theirs, field)
    return "" if planned == here else f"operator '{ours.name}' has {field} {planned} in the plan, {here} in this model"
