"""The rest of a module graph whose loss has been cut out: what the wanted outputs need."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import fx

from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.torch_private import flatten, unflatten


def without_loss(traced: ModuleGraph, wanted: Sequence[str], labels: Collection[str]) -> ModuleGraph | None:
    """Return the graph of the same module without labels. None: what it returns needs them.

    A forward that is given no labels computes the same outputs, and no loss. So the module need not be traced again.

    Args:
        traced: the graph of a module that was given labels and returns a dict.
        wanted: the entries of its output to return.
        labels: names of inputs.
    """
    (end,) = (node for node in traced.graph.nodes if node.op == "output")
    returned = unflatten(list(end.args[0]), traced.output_spec)
    if not isinstance(returned, Mapping) or any(name not in returned for name in wanted):
        return None
    results, spec = flatten({name: returned[name] for name in wanted})
    needed = _needed(traced.graph, [node for node in results if isinstance(node, fx.Node)])
    if not needed.isdisjoint(traced.inputs[name] for name in labels):
        return None
    kept = {name: node for name, node in traced.inputs.items() if name not in labels}
    # What nothing needs stays, as in a trace without labels.
    loss_only = {end, *_needed(traced.graph, end.all_input_nodes)} - needed - {*kept.values()}
    graph, copies = _copied(node for node in traced.graph.nodes if node not in loss_only)
    graph.output(tuple(copies[item] if isinstance(item, fx.Node) else item for item in results))
    targets = {node.target for node in graph.nodes if node.op == "get_attr"}
    return replace(
        traced,
        graph=graph,
        inputs={name: copies[node] for name, node in kept.items()},
        output_spec=spec,
        constants={target: each for target, each in traced.constants.items() if target in targets},
    )


def copy_of(found: ModuleGraph) -> ModuleGraph:
    """Return a copy of a graph."""
    graph, copies = _copied(found.graph.nodes)
    return replace(found, graph=graph, inputs={name: copies[node] for name, node in found.inputs.items()})


def _copied(nodes: Iterable[fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        if all(each in copies for each in node.all_input_nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _needed(graph: fx.Graph, results: Sequence[fx.Node]) -> set[fx.Node]:
    # What the results and the writes into buffers need.
    found = set[fx.Node]()
    stack = [*results, *(node for node in graph.nodes if "writes" in node.meta)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found
