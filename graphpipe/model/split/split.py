"""From a plan to the stage programs that run it with the user's own submodules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from graphpipe.costs import regions
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, ParameterSlice, parameter_of
from graphpipe.model.capture.batch_statistics import what_and_remedy
from graphpipe.model.capture.build_ops import tensor_names
from graphpipe.model.capture.capture import Captured, capture_again
from graphpipe.model.capture.changed_weights import check_not_recomputed
from graphpipe.model.capture.module_graph.writes import written
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.capture.same_model import other_model, with_graph_of
from graphpipe.model.dag_module import model_name
from graphpipe.model.hidden.compiled_modules import check_compiled_modules
from graphpipe.model.hidden.refused_modules import check_gradient_hooks
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.stage_graph import stage_graph, stage_module
from graphpipe.model.split.submodules import Submodules
from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_ROUNDING = 0.5
"""Bytes: those of slices are shares of the whole, which are not exact."""


def split(
    module: nn.Module, plan: Plan, captured: Captured | None = None, submodules: Submodules | None = None
) -> tuple[ModuleStage, ...]:
    """Return one program per stage of `plan`, in order, that run `module`'s own submodules.

    Args:
        module: the user's model.
        plan: for the graph that was captured from it.
        captured: the captured model, if it is at hand; None captures it again.
        submodules: what the stages call, if other programs call it too.

    Raises:
        InvalidInput: the plan's graph was not captured from a module, or from another model; the plan does not have
            the edges that the model's values need, or calls a submodule with buffers in two stages.
    """
    check_compiled_modules(module)
    check_gradient_hooks(module)
    if captured is not None:
        captured = with_graph_of(split_like(captured, plan.graph), plan.graph)
        _check_tensors(module, plan.graph)
    return build_stages(module, plan, captured or capture_for(module, plan.graph), submodules)


def build_stages(
    module: nn.Module, plan: Plan, captured: Captured, submodules: Submodules | None = None
) -> tuple[ModuleStage, ...]:
    """Return the stage programs, given the capture that `plan.graph` was made from.

    Raises:
        InvalidInput: as `split`.
    """
    stage_of = {op: number for number, stage in enumerate(plan.stages) for op in stage.ops}
    where = {node: stage_of[op] for op, nodes in captured.nodes.items() for node in nodes}
    crossing = _crossing(captured, where)
    _check_edges(plan, crossing)
    called = submodules or submodules_for(module, plan.graph)
    names = tensor_names(module)
    return tuple(_build(called, captured, plan, number, where, crossing, names) for number in range(len(plan.stages)))


def submodules_for(module: nn.Module, graph: Graph) -> Submodules:
    """Return what the stages of any plan for `graph` call.

    Raises:
        InvalidInput: a layer that is split has a hook or a parametrised weight.
    """
    return Submodules(module, () if graph.origin is None else graph.origin.split_ops)


def capture_for(module: nn.Module, graph: Graph) -> Captured:
    """Return the capture that `graph` was made from.

    Raises:
        InvalidInput: it was not captured from a module, or was captured from another model.
    """
    if graph.origin is None:
        remedy = "Capture the model, and plan for that graph."
        raise InvalidInput(f"graph '{graph.name}' was not captured from a module", where="split", remedy=remedy)
    if model_name(module) != graph.name:
        raise other_model(f"it is for {graph.name}, this model is {model_name(module)}")
    origin = replace(graph.origin, split_ops=())
    return with_graph_of(split_like(capture_again(module, graph.inputs, origin, compare_modes=False), graph), graph)


def _check_tensors(module: nn.Module, graph: Graph) -> None:
    # Less than to capture it again: the graph is the plan's, and the model's tensors are those of its operators.
    tensors = dict(module.named_parameters(remove_duplicate=False))
    for op in graph.ops:
        if missing := [name for name in op.parameters if parameter_of(name) not in tensors]:
            raise other_model(f"operator '{op.name}' has parameter '{missing[0]}', which this model does not have")
        trains = not op.parameters or any(tensors[parameter_of(name)].requires_grad for name in op.parameters)
        if trains != op.trainable:
            raise other_model(f"operator '{op.name}' has trainable {op.trainable} in the plan, {trains} in this model")
        found = sum(_bytes(tensors[parameter_of(name)], ParameterSlice.parse(name)) for name in op.parameters)
        if abs(found - op.parameter_bytes) > _ROUNDING:
            raise other_model(
                f"operator '{op.name}' has {op.parameter_bytes:.0f} bytes of parameters in the plan, {found:.0f} here"
            )


def _bytes(tensor: Tensor, piece: ParameterSlice | None) -> float:
    whole = tensor.numel() * tensor.element_size()
    return whole * (piece.stop - piece.start) / tensor.shape[piece.dimension] if piece else whole


Crossing = Mapping[tuple[int, int], tuple[fx.Node, ...]]


def _crossing(captured: Captured, where: Mapping[fx.Node, int]) -> Crossing:
    # The values from one stage to another, sorted by name.
    found: dict[tuple[int, int], set[fx.Node]] = {}
    for node, stage in where.items():
        for value in captured.values.read_by(node):
            if value in where and where[value] != stage:
                assert value in captured.values.crossing
                found.setdefault((where[value], stage), set()).add(value)
    return {key: tuple(sorted(values, key=lambda value: value.name)) for key, values in found.items()}


def _check_edges(plan: Plan, crossing: Crossing) -> None:
    # An edge of 0 bytes only orders the stages of a sequential pipeline.
    planned = {(edge.source, edge.target): edge.bytes_per_sample for edge in plan.edges}
    missing = set(crossing) - set(planned)
    unused = {ends for ends, count in planned.items() if count and ends not in crossing}
    for source, target in sorted(missing | unused):
        ends = f"from stage '{plan.stages[source].name}' to stage '{plan.stages[target].name}'"
        what = f"the plan has an edge {ends}, but no value goes there"
        if (source, target) in crossing:
            what = f"value '{crossing[source, target][0].name}' goes {ends}, but the plan has no such edge"
        raise InvalidInput(what, where="split", remedy="Verify the plan, or plan again.")


def _build(
    submodules: Submodules,
    captured: Captured,
    plan: Plan,
    stage: int,
    where: Mapping[fx.Node, int],
    crossing: Crossing,
    names: Mapping[int, str],
) -> ModuleStage:
    def specs(values: Sequence[fx.Node]) -> tuple[ValueSpec, ...]:
        return tuple(_spec(captured, value) for value in values)

    planned = plan.stages[stage]
    again = [op for region in regions(planned.ops, planned.recompute) for op in region]
    check_not_recomputed((node for op in again for node in captured.nodes[op]), planned.name)
    edges = {(edge.source, edge.target): position for position, edge in enumerate(plan.edges)}
    receives = {at: specs(crossing.get(key, ())) for key, at in edges.items() if key[1] == stage}
    sends = {at: specs(crossing.get(key, ())) for key, at in edges.items() if key[0] == stage}
    sent = list(dict.fromkeys(value for key, values in crossing.items() if key[0] == stage for value in values))
    mine = [node for node in captured.module_graph.graph.nodes if where.get(node) == stage]
    divided = submodules.divide(captured, mine, stage)
    graph, model_inputs, received = stage_graph(captured, mine, sent, _region_of(captured, plan.stages[stage]), divided)
    inner = stage_module(submodules, captured, graph, stage)
    names = {**names, **submodules.slice_names}
    outputs = [node for node in mine if node.op == "output"]
    return ModuleStage(
        module=inner,
        model_inputs=tuple(model_inputs),
        receives=dict(sorted(receives.items())),
        sends=dict(sorted(sends.items())),
        is_output=bool(outputs),
        parameter_names={name: names[id(tensor)] for name, tensor in inner.named_parameters()},
        buffer_names={name: names[id(tensor)] for name, tensor in inner.named_buffers()},
        arguments=(*model_inputs, *(value.name for value in received)),
        sent=tuple(value.name for value in sent),
        output_spec=captured.module_graph.output_spec,
        mixes=_mixes(plan, planned),
        in_evaluation=captured.module_graph.in_evaluation,
        summed=divided.summed,
        output_dtypes=tuple(_dtype(captured, leaf) for node in outputs for leaf in _leaves(node)),
    )


def _mixes(plan: Plan, stage: Stage) -> tuple[str, str] | None:
    if stage.micro_batch == plan.batch_size and stage.degree == 1:
        return None
    found = (plan.graph[name].mixes for name in stage.ops)
    return next((what_and_remedy(mixing) for mixing in found if mixing), None)


def _region_of(captured: Captured, stage: Stage) -> dict[fx.Node, str]:
    """Return the region of every node that the stage recomputes or offloads; empty if it recomputes everything."""
    names = stage.offload if isinstance(stage.recompute, str) else (*stage.recompute, *stage.offload)
    found = zip(names, regions(stage.ops, names), strict=True)
    nodes = ((node, name) for name, ops in found for op in ops for node in captured.nodes[op])
    return {node: name for node, name in nodes if node.target is not written}  # what is written stays written


def _leaves(output: fx.Node) -> Sequence[object]:
    (leaves,) = output.args
    assert isinstance(leaves, Sequence)
    return leaves


def _dtype(captured: Captured, leaf: object) -> torch.dtype | None:
    reading = captured.readings.get(leaf) if isinstance(leaf, fx.Node) else None
    return reading and reading.dtype


def _spec(captured: Captured, value: fx.Node) -> ValueSpec:
    reading = captured.readings[value]
    assert reading.sample_shape is not None
    return ValueSpec(
        name=value.name,
        sample_shape=reading.sample_shape,
        dtype=reading.dtype,
        requires_grad=reading.requires_grad,
    )
