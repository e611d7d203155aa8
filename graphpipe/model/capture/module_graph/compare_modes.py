"""Whether a model computes the same in training and in evaluation, from its two graphs, and what it returns if not."""

from collections.abc import Collection, Mapping

import torch
from torch import fx

from graphpipe.model.capture.module_graph.module_graph import EvaluationOutput, ModuleGraph

_NORMS = (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default)
_RUNNING_MEAN = 3
"""The position of this argument of both."""


def writes(found: ModuleGraph) -> dict[str, fx.Node]:
    """Return the writes into buffers of the model's own, by the buffer's name."""
    return {node.meta["writes"]: node for node in found.graph.nodes if "writes" in node.meta}


def writes_unseen(found: ModuleGraph) -> bool:
    """True if glue computes running statistics, which torch does not declare as a write into a buffer."""
    return any(node.target in _NORMS and node.args[_RUNNING_MEAN] is not None for node in found.graph.nodes)


def difference(one: ModuleGraph, other: ModuleGraph, buffers: Collection[str]) -> tuple[str, str] | None:
    """Return the owners, in both graphs, of the first node that differs; None: the graphs are equal.

    The owner is "" for the model itself.

    Args:
        one: a graph.
        other: a graph of the same module.
        buffers: only writes into these are compared.
    """
    ours, theirs = (_lines(each, buffers) for each in (one, other))
    for (line, owner), (its_line, its_owner) in zip(ours, theirs, strict=False):
        if line != its_line:
            return owner, its_owner
    return None if len(ours) == len(theirs) else ("", "")


def evaluation_output(training: ModuleGraph, evaluation: ModuleGraph) -> EvaluationOutput:
    """Return which leaves of the training's output a model returns in evaluation.

    An auxiliary head is a part of the forward in training only. The main head is in both graphs, with the same nodes
    before it.
    """
    known: dict[str, int] = {}
    ours, theirs = (_leaves(each, known) for each in (training, evaluation))
    found = all(leaf in ours for leaf in theirs)
    return EvaluationOutput(
        leaves=tuple(ours.index(leaf) for leaf in theirs) if found else None, spec=evaluation.output_spec
    )


def _leaves(found: ModuleGraph, known: dict[str, int]) -> list[object]:
    # The leaves of the output. Nodes that compute the same have the same number, in both graphs.
    names: dict[fx.Node, str] = {}
    for node in found.graph.nodes:
        if node.op == "output":
            return [("node", names[leaf]) if isinstance(leaf, fx.Node) else leaf for leaf in node.args[0]]
        names[node] = f"%{known.setdefault(_line(node, names), len(known))}"
    raise AssertionError("a graph without output")


def _lines(found: ModuleGraph, buffers: Collection[str]) -> list[tuple[str, str]]:
    # What the output and the writes into these buffers need: a line of text for each node, and its owner.
    needed: set[fx.Node] = set()
    for node in reversed(found.graph.nodes):
        if node.op == "output" or node.meta.get("writes") in buffers or any(user in needed for user in node.users):
            needed.add(node)
    nodes = [node for node in found.graph.nodes if node in needed]
    names = {node: f"%{number}" for number, node in enumerate(nodes)}
    return [(_line(node, names), node.meta.get("owner", "")) for node in nodes]


def _line(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    args, kwargs = (fx.map_arg(each, lambda other: names[other]) for each in (node.args, node.kwargs))
    return f"{node.op} {node.target} {args} {kwargs}"
