"""Records the backward of a whole captured model, from a run on fake tensors."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from graphpipe.graph.backward_graph import walk
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.shape_propagation import evaluate
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.function_caches import without_caches
from graphpipe.model.inputs import blank
from graphpipe.model.split.autograd_graph import edges_of, own_backward
from graphpipe.model.split.whole_backwards import SAMPLES
from graphpipe.model.torch_private import fake_mode
from graphpipe.plans.backward_record import At, BackwardRecord, CutValue


def record_backward(module: nn.Module, captured: Captured) -> BackwardRecord:
    """Return the record of a model's backward.

    Args:
        module: the model; nothing is computed with its weights.
        captured: from this model.
    """
    edges = _edges(module, captured)
    op_of = {node: op for op, nodes in captured.nodes.items() for node in nodes}
    output = next(node for node in captured.module_graph.graph.nodes if node.op == "output")
    crossing = [node for node in captured.module_graph.graph.nodes if node in captured.values.crossing & edges.keys()]
    ends = [edges[node] for node in dict.fromkeys([*crossing, *output.all_input_nodes]) if node in edges]
    children = walk(ends, edges_of)
    number = {node: place for place, node in enumerate(children)}

    def at(edge: GradientEdge) -> At:
        return number[edge.node], edge.output_nr

    values = [(node, sorted(_readers(node, op_of, captured) - {op_of[node]})) for node in crossing]
    return BackwardRecord(
        children=tuple(tuple(at(edge) for edge in found) for found in children.values()),
        own_backwards={number[node]: name for node in children if (name := own_backward(node))},
        values=tuple(CutValue(op=op_of[node], readers=tuple(ops), at=at(edges[node])) for node, ops in values if ops),
        outputs=tuple(at(edges[node]) for node in output.all_input_nodes if node in edges),
        output_op=op_of[output],
    )


def _edges(module: nn.Module, captured: Captured) -> dict[fx.Node, GradientEdge]:
    # The edge to every value that has a gradient, as it is when the value has just been computed.
    mode = fake_mode()
    fake = fake_copy(module, mode)
    names = {node: name for name, node in captured.module_graph.inputs.items()}
    values: dict[fx.Node, Any] = {}
    found: dict[fx.Node, GradientEdge] = {}
    with without_caches(module), mode, torch.enable_grad():
        inputs = blank(captured.graph.inputs, SAMPLES)
        for node in captured.module_graph.graph.nodes:
            value = inputs[names[node]] if node in names else evaluate(node, values, fake, captured.module_graph)
            values[node] = value
            if isinstance(value, Tensor) and value.requires_grad:
                found[node] = get_gradient_edge(value)
    return found


def _readers(node: fx.Node, op_of: Mapping[fx.Node, str], captured: Captured) -> set[str]:
    return {op_of[reader] for reader in _reading(node, captured) if reader in op_of}


def _reading(node: fx.Node, captured: Captured) -> Iterator[fx.Node]:
    # Every operator that reads a duplicated node computes it, and so reads what that node reads.
    for user in node.users:
        yield user
        if user in captured.values.duplicated:
            yield from _reading(user, captured)
