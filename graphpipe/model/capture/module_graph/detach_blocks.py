"""Blocks of a forward in which gradients are switched off: their results become detached."""

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from graphpipe.model.torch_private import switches_gradients


def detach_blocks(program: ExportedProgram) -> None:
    """Detach the results of every block under `torch.no_grad()`, in the program itself.

    The block's nodes can then be computed like any others: no gradient goes back through them, and what autograd has
    recorded in the block is dropped at its end. torch.export gives each block a graph of its own, and writes nested
    blocks one after another. Its decompositions put the nodes of a block back into the graph around it, and forget that
    gradients were off.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if switches_gradients(node.target) and not node.args[0]:
                    _detach_results(getattr(module, node.args[1].target))


def _detach_results(block: fx.GraphModule) -> None:
    (output,) = (node for node in block.graph.nodes if node.op == "output")
    with block.graph.inserting_before(output):
        output.args = (tuple(_detached(block.graph, result) for result in output.args[0]),)
    block.recompile()


def _detached(graph: fx.Graph, result: object) -> object:
    if not isinstance(result, fx.Node) or not isinstance(result.meta.get("val"), Tensor):
        return result  # a size
    found = graph.call_function(torch.ops.aten.detach.default, (result,))
    found.meta = dict(result.meta)
    return found
