"""A module graph from the declaration of a DagModule: one call per named submodule, without glue."""

from collections.abc import Mapping

from torch import Tensor, fx

from graphpipe.model.capture.module_graph.calls.hidden_effects import check_hooks
from graphpipe.model.capture.module_graph.calls.weight_writes import WeightsBefore, Writes
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.module_graph.rebuild_containers import rebuild_containers
from graphpipe.model.dag_module import DagModule
from graphpipe.model.hidden.real_call import call_anyway
from graphpipe.model.hidden.result_types import flatten_open
from graphpipe.model.torch_private import flatten, leaf, unflatten


def declared_graph(fake: DagModule, inputs: Mapping[str, Tensor]) -> ModuleGraph:
    """Return the graph of a DagModule; runs it on fake inputs to see what its submodules return.

    Raises:
        CannotExpress: it has a hook, which would not run.
        Exception: any error of a submodule on fake tensors.
    """
    check_hooks(fake, "")
    graph = fx.Graph()
    placeholders = {name: graph.placeholder(name) for name in fake.input_names}
    nodes: dict[str, object] = dict(placeholders)
    values: dict[str, object] = dict(inputs)
    for name, names in fake.feeds.items():
        call = graph.call_module(name, rebuild_containers(graph, tuple(nodes[other] for other in names), ""))
        call.meta["owner"] = ""
        module = fake.get_submodule(name)
        before = WeightsBefore(module.named_parameters)
        with Writes() as writes:
            values[name] = call_anyway(module, [values[other] for other in names], {})
        if changed := before.changed(writes.wrote_into):
            call.meta["changes"] = tuple(f"{name}.{each}" for each in changed)
        nodes[name] = _unpack(graph, call, values[name])
    output = nodes[fake.output] if isinstance(fake.output, str) else {name: nodes[name] for name in fake.output or ()}
    leaves, spec = flatten(output)
    graph.output(tuple(leaves))
    return ModuleGraph(graph=graph, inputs=placeholders, output_spec=spec, constants={})


def _unpack(graph: fx.Graph, call: fx.Node, value: object) -> object:
    # The value with a node in place of each of its tensors.
    leaves, spec = flatten_open(value)
    if spec.is_leaf():
        return call
    nodes: list[object] = []
    for position, item in enumerate(leaves):
        node = graph.call_function(leaf, (call, position)) if isinstance(item, Tensor) else item
        if isinstance(node, fx.Node):
            node.meta["owner"] = ""
        nodes.append(node)
    return unflatten(nodes, spec)
