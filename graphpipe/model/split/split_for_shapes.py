"""A split model for inputs of other shapes, such as longer sequences: captured again, and cut at the same places.

Glue contains sizes as constants (a mask of 16 by 16), so a stage is correct only for the shapes of its capture. The
user's submodules, and so all parameters, are the same in every split.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from torch import fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.model.capture.capture import Captured, capture_again
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.node_places import NodePlace, node_places
from graphpipe.model.split.split import build_stages
from graphpipe.model.split.submodules import Submodules
from graphpipe.plans.plan import Plan

OperatorNodes = Mapping[str, tuple[NodePlace, ...]]
"""The places of the captured nodes of every operator."""


def operator_nodes(captured: Captured) -> OperatorNodes:
    """Return the places of the nodes of every operator."""
    places = node_places(captured)
    return {op: tuple(places[node] for node in group) for op, group in captured.nodes.items()}


def split_for_shapes(
    module: nn.Module, plan: Plan, groups: OperatorNodes, inputs: tuple[Input, ...], submodules: Submodules
) -> tuple[ModuleStage, ...]:
    """Return one program per stage, as `split` does, for these inputs instead of those of the plan's graph.

    Args:
        module: the user's model.
        plan: for the graph that was captured from it.
        groups: of the plan's graph.
        inputs: of the mini-batches to come.
        submodules: what the stages for the plan's own inputs call.

    Raises:
        InvalidInput: the model cannot be captured with these inputs, or computes something different with them.
    """
    assert plan.graph.origin is not None
    origin = replace(plan.graph.origin, split_ops=())
    captured = split_like(capture_again(module, inputs, origin, compare_modes=False), plan.graph)
    return build_stages(module, plan, _regrouped(captured, groups, inputs), submodules)


def rebind(program: ModuleStage, original: nn.Module, copied: nn.Module) -> ModuleStage:
    """Return a program that uses a replica's submodules instead of the user's.

    Args:
        program: a stage for some shapes, with the user's submodules.
        original: the module of that stage for other shapes, with the user's submodules.
        copied: a copy of `original`, with the replica's submodules.
    """
    memo: dict[int, object] = {}
    pairs = chain(
        zip(original.modules(), copied.modules(), strict=True),
        zip(original.parameters(), copied.parameters(), strict=True),
        zip(original.buffers(), copied.buffers(), strict=True),
    )
    for users, replicas in pairs:
        memo[id(users)] = replicas
    return replace(program, module=copy.deepcopy(program.module, memo))


def _regrouped(captured: Captured, groups: OperatorNodes, inputs: tuple[Input, ...]) -> Captured:
    # Which groups are tiny depends on the shapes, and so do operators. The operators of the plan are used.
    places = node_places(captured)
    nodes = {places[node]: node for group in captured.nodes.values() for node in group}
    # A loss that was cut out converts the scores to float32. If they are float32, that gives the same tensor, which is
    # then what the model returns. Without labels it is not converted.
    groups = {op: tuple(each for each in found if each in nodes or not each.converts) for op, found in groups.items()}
    groups = _with_conversions(groups, places, nodes)
    known = {place for found in groups.values() for place in found}
    if different := sorted(known ^ nodes.keys(), key=lambda place: place.name):
        shapes = ", ".join(f"{each.name}{[*each.sample_shape]}" for each in inputs)
        reason = "no longer has" if different[0] in known else "also has"
        raise InvalidInput(
            f"with samples of {shapes} the model computes something else than the plan was made for: "
            f"it {reason} '{different[0].name}'",
            where="inputs",
            remedy="Pad the samples to the shapes the plan was made with, or plan with these.",
        )
    return replace(captured, nodes={op: tuple(nodes[place] for place in found) for op, found in groups.items()})


def _with_conversions(
    groups: OperatorNodes, places: Mapping[fx.Node, NodePlace], nodes: Mapping[NodePlace, fx.Node]
) -> OperatorNodes:
    # A conversion that the plan does not know belongs to the first operator that reads it.
    op_of = {place: op for op, found in groups.items() for place in found}
    for place, node in reversed([*nodes.items()]):
        readers = (op_of.get(places[user]) for user in node.users)
        op = next((op for op in readers if op is not None), None)
        if place not in op_of and place.converts and op is not None:
            op_of[place] = op
            groups = {**groups, op: (place, *groups[op])}
    return groups
