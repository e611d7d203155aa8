"""The graph of one stage, cut out of a captured model, and the module that runs it."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext

import torch
from torch import fx, nn

from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.crossing_values import duplicated_inputs, is_anchor
from graphpipe.model.capture.module_graph.module_graph import TRAINING, input_placeholder, mode_dropout
from graphpipe.model.capture.shape_propagation import attribute
from graphpipe.model.split.glue_module import glue_module
from graphpipe.model.split.mode_dropout import ModeDropout
from graphpipe.model.split.recompute_region import RecomputeRegion, fold_regions
from graphpipe.model.split.submodules import Conversion, DividedNodes, Submodules

_WHOLE = DividedNodes()
_EMPTY = fx.GraphModule({}, fx.Graph())
"""Has the attributes whose names a submodule of a graph module cannot have."""


def stage_graph(
    captured: Captured,
    mine: list[fx.Node],
    sent: list[fx.Node],
    region_of: Mapping[fx.Node, str],
    divided: DividedNodes = _WHOLE,
) -> tuple[fx.Graph, list[str], list[fx.Node]]:
    """Return the graph of the stage that computes the nodes `mine`, its model inputs, and the values it receives.

    Its placeholders are the model inputs by name, then the received values sorted by name. It returns the values `sent`
    and the leaves of the model's output, which are empty unless the output node is in `mine`. Sample count and device
    come from its first placeholder, so that they are never sent. The region of a node is in its `meta`.

    Where ranks divide the sequence, `meta["on_shards"]` is true for what computes shards, and `meta["conversion"]` says
    what a node does that scatters or gathers a value. It follows the value, in the same region.
    """
    module_graph = captured.module_graph
    duplicated = duplicated_inputs(mine, captured.values.duplicated)
    inside = {*mine, *duplicated}
    received = sorted({v for n in mine for v in captured.values.read_by(n)} - inside, key=lambda value: value.name)
    by_value = {v for node in inside if not is_anchor(node) for v in node.all_input_nodes}
    inputs = {name: node for name, node in module_graph.inputs.items() if node in by_value}
    if not inputs and not received:
        inputs = dict(list(module_graph.inputs.items())[:1])
    graph = fx.Graph()
    env = {node: input_placeholder(graph, name) for name, node in inputs.items()}
    env |= {value: graph.placeholder(value.name) for value in received}
    anchor = next(iter(env.values()))
    converted = _Conversions(graph, env, divided, inside, {*sent})
    for node in [*env]:
        converted.add(node)
    results: object = ()
    for node in module_graph.graph.nodes:
        if node.op == "output" and node in inside:
            results = fx.map_arg(node.args[0], lambda other: converted.read(other, None))
        elif node in inside and node not in env:
            env[node] = (
                graph.call_function(node.target, (anchor,))
                if is_anchor(node)
                else graph.node_copy(node, lambda other, node=node: converted.read(other, node))
            )
            if node in region_of:
                env[node].meta["region"] = region_of[node]
            if node in divided.reading:
                env[node].meta["on_shards"] = True
            converted.add(node)
    graph.output((tuple(converted.read(value, None) for value in sent), results))  # pyright: ignore[reportArgumentType]
    return graph, list(inputs), received


class _Conversions:
    """Values in the graph of a stage that were scattered or gathered."""

    def __init__(
        self,
        graph: fx.Graph,
        env: Mapping[fx.Node, fx.Node],
        divided: DividedNodes,
        inside: Collection[fx.Node],
        sent: Collection[fx.Node],
    ) -> None:
        self.graph, self.env, self.divided, self.inside, self.sent = graph, env, divided, inside, sent
        self.converted: dict[tuple[fx.Node, Conversion], fx.Node] = {}

    def add(self, value: fx.Node) -> None:
        """Convert a value for the nodes that will read it."""
        readers = [None if user.op == "output" else user for user in value.users if user in self.inside]
        readers += [None] if value in self.sent else []
        for reader in readers:
            how = self.divided.conversion(value, reader)
            if how is not None and (value, how) not in self.converted:
                made = self.graph.call_module(f"sequence.{how}", (self.env[value],))
                made.meta["conversion"] = how
                if "region" in self.env[value].meta:
                    made.meta["region"] = self.env[value].meta["region"]
                self.converted[value, how] = made

    def read(self, value: fx.Node, reader: fx.Node | None) -> fx.Node:
        """Return the value as a node reads it; a reader of None is another stage, or the loss."""
        how = self.divided.conversion(value, reader)
        return self.env[value] if how is None else self.converted[value, how]


def stage_module(submodules: Submodules, captured: Captured, graph: fx.Graph, stage: int = 0) -> fx.GraphModule:
    """Return a module that runs a stage's graph on the user's own submodules, parameters and buffers.

    Each region becomes a submodule, a `RecomputeRegion`.
    """
    if not any("region" in node.meta for node in graph.nodes):
        return _graph_module(submodules, captured, graph, {}, stage)
    folded, made = fold_regions(graph, lambda _, inner: _graph_module(submodules, captured, inner, {}, stage))
    return _graph_module(submodules, captured, folded, made, stage)


def _graph_module(
    submodules: Submodules, captured: Captured, graph: fx.Graph, made: Mapping[str, nn.Module], stage: int
) -> fx.GraphModule:
    # Tensors that glue reads get new names, so that nothing is registered in the user's modules.
    # Submodules get names without dots, because every step of a dotted look-up takes time in every forward.
    module, constants = submodules.model, captured.module_graph.constants
    root: dict[str, object] = {}
    plain: list[str] = []
    flat: dict[tuple[str, bool], str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            path, on_shards = str(node.target), "on_shards" in node.meta
            if (path, on_shards) not in flat:
                flat[path, on_shards] = name = _free_name(path.replace(".", "_"), root)
                if "conversion" in node.meta:
                    root[name] = submodules.sharing[stage].converted(node.meta["conversion"])
                elif on_shards:
                    root[name] = submodules.get_on_shards(path, stage)
                else:
                    root[name] = made[path] if path in made else submodules.get(path, stage)
            node.target, node.meta["path"] = flat[path, on_shards], path
        elif node.op == "get_attr" and node.target == TRAINING:
            root[TRAINING] = module.training  # fx sets it as an attribute, which is the mode of the module
        elif node.op == "get_attr":
            tensor = constants[node.target] if node.target in constants else attribute(module, node.target)
            name = _free_name(f"tensor_{len(root)}", root)
            plain += [name] if node.target in constants else []
            node.target = name
            root[name] = tensor
        elif node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default  # indexing may return other strides than it did without data
    _add_dropouts(submodules, stage, graph, root)
    inner = glue_module(root, graph, plain)
    inner.training = module.training
    return inner


def _add_dropouts(submodules: Submodules, stage: int, graph: fx.Graph, root: dict[str, object]) -> None:
    # Each dropout of glue becomes a module, which follows the mode of the submodules that its forward calls.
    called = [(node, each) for node in graph.nodes if node.op == "call_module" for each in _users(root[node.target])]
    for node in graph.nodes:
        if node.target is not mode_dropout:
            continue
        owner = node.meta["owner"]
        near = [each for other, each in called if other.meta.get("owner") == owner] or [each for _, each in called]
        draws = submodules.sharing[stage].own_draws if "on_shards" in node.meta else nullcontext
        made = ModeDropout(node.args[1], near, draws)
        made.train(submodules.model.get_submodule(owner).training)
        name = _free_name(f"dropout_{len(root)}", root)
        root[name] = made
        node.op, node.target, node.args = "call_module", name, node.args[:1]


def _users(module: object) -> list[nn.Module]:
    # The user's own modules that a stage calls: one, or those in a region.
    assert isinstance(module, nn.Module)
    inside = module.inner.children() if isinstance(module, RecomputeRegion) else [module]
    return [each for each in inside if not isinstance(each, ModeDropout)]


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken or hasattr(_EMPTY, name):
        name += "_"
    return name
