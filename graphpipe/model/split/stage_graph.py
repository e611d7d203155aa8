"""The graph of one stage, cut out of a captured model, and the module that runs it."""

from collections.abc import Collection, Mapping

from torch import fx, nn

from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.crossing_values import free_needs, is_anchor
from graphpipe.model.capture.shape_propagation import attribute
from graphpipe.model.split.recompute_region import fold
from graphpipe.model.torch_private import make_plain

_EMPTY = fx.GraphModule({}, fx.Graph())
"""Has the names that no submodule of a graph module can have."""


def stage_graph(
    captured: Captured, mine: list[fx.Node], sent: list[fx.Node], region_of: Mapping[fx.Node, str]
) -> tuple[fx.Graph, list[str], list[fx.Node]]:
    """Return the graph of the stage that computes the nodes `mine`, its model inputs, and the values it receives.

    Its placeholders are the model inputs by name, then the received values sorted by name; it returns the values
    `sent` and the leaves of the model's output (none unless the output node is among `mine`). Sample count and device
    are those of its first placeholder, so that neither is ever sent. A node's region is in its `meta`.
    """
    skeleton = captured.skeleton
    free = free_needs(mine, captured.values.free)
    received = sorted({v for n in mine for v in n.all_input_nodes} - set(mine) - free, key=lambda value: value.name)
    inside = {*mine, *free}
    by_value = {v for node in inside if not is_anchor(node) for v in node.all_input_nodes}
    inputs = {name: node for name, node in skeleton.inputs.items() if node in by_value}
    if not inputs and not received:
        inputs = dict(list(skeleton.inputs.items())[:1])
    graph = fx.Graph()
    env = {node: graph.placeholder(name) for name, node in inputs.items()}
    env |= {value: graph.placeholder(value.name) for value in received}
    anchor = next(iter(env.values()))
    results: object = ()
    for node in skeleton.graph.nodes:
        if node.op == "output" and node in inside:
            results = fx.map_arg(node.args[0], lambda other: env[other])
        elif node in inside and node not in env:
            env[node] = (
                graph.call_function(node.target, (anchor,))
                if is_anchor(node)
                else graph.node_copy(node, env.__getitem__)
            )
            if node in region_of:
                env[node].meta["region"] = region_of[node]
    graph.output((tuple(env[value] for value in sent), results))  # pyright: ignore[reportArgumentType]
    return graph, list(inputs), received


def stage_module(module: nn.Module, captured: Captured, graph: fx.Graph) -> fx.GraphModule:
    """Return a module that runs a stage's graph on `module`'s own submodules, parameters and buffers.

    Nodes with a region in their `meta` are in submodules of their own (`Region`).
    """
    if not any("region" in node.meta for node in graph.nodes):
        return _graph_module(module, captured, graph, {})
    folded, made = fold(graph, lambda _, inner: _graph_module(module, captured, inner, {}))
    return _graph_module(module, captured, folded, made)


def _graph_module(
    module: nn.Module, captured: Captured, graph: fx.Graph, made: Mapping[str, nn.Module]
) -> fx.GraphModule:
    # Tensors that glue reads get names of their own, so that nothing is registered on a module of the user's.
    # Submodules have names without dots: each that is looked up on the way to another takes time in every forward.
    constants = captured.skeleton.constants
    root: dict[str, object] = {}
    plain: list[str] = []
    flat: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            path = str(node.target)
            if path not in flat:
                flat[path] = _free_name(path.replace(".", "_"), root)
                root[flat[path]] = made[path] if path in made else module.get_submodule(path)
            node.target = flat[path]
        elif node.op == "get_attr":
            tensor = constants[node.target] if node.target in constants else attribute(module, node.target)
            name = _free_name(f"tensor_{len(root)}", root)
            plain += [name] if node.target in constants else []
            node.target = name
            root[name] = tensor
    inner = fx.GraphModule(root, graph, "Stage")
    for name in plain:  # a constant is no buffer: it is in nobody's state
        make_plain(inner, name)
    inner.training = module.training
    return inner


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken or hasattr(_EMPTY, name):
        name += "_"
    return name
