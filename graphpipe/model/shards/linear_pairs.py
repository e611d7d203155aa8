"""Finds linear layers with only elementwise operations between them, in the forward of a small module.

x -> up -----> gelu ---> * -> down ->        columns: up, gate      row: down
x -> gate ---------------^

Between two convolutions there may also be operations of each channel, such as a batch norm or a depthwise convolution.
"""

from typing import Any, final

from torch import fx, nn

from graphpipe.model.shards.layers.channels import channel_groups, channels_of, is_convolution
from graphpipe.model.shards.layers.linears import inputs_of, is_linear, linear_at, outputs_of

_ELEMENTWISE_MODULES = (
    *(nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Mish, nn.Hardswish, nn.ReLU6),
    *(nn.Dropout, nn.Identity, nn.Softplus, nn.Softsign),
)
_ELEMENTWISE = frozenset(
    [
        *("gelu", "relu", "relu_", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "mish", "hardswish", "dropout"),
        *("mul", "square", "pow", "softplus", "relu6", "contiguous", "to", "type_as"),
    ]
)
_OF_CHANNELS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Upsample),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Modules without parameters that compute each channel for itself."""
_NAMES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("wi_0", "wi_1"), "wo"),
    (("wi",), "wo"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("intermediate.dense",), "output.dense"),
)
"""Layers in forwards that ask for the dtype of a value, which cannot be traced: of T5, Llama, BERT and their kin."""
_FEW = 64
"""A module with more submodules is no block of a few layers, and tracing it takes time."""

Pair = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Layers that share their outputs, the layer that reads only these, and layers of each channel in between."""


def linear_pairs(module: nn.Module) -> list[Pair]:
    """Return the pairs among the linear layers that a module calls itself, by their names in it."""
    if type(module) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return [(("linear1",), "linear2", ())]  # their forwards branch on values, which cannot be traced
    parts = [*module.modules()]
    if sum(map(_mixes, parts)) < 2 or len(parts) > _FEW:
        return _by_names(module)
    graph = _traced(module)
    if graph is None:
        return _by_names(module)
    called = [node for node in graph.nodes if node.op == "call_module" and _mixes(_part(module, node))]
    found: list[Pair] = []
    for row in called:
        columns, between = _columns(module, row, called)
        once = [node.target for node in graph.nodes if node.op == "call_module"]
        repeated = any(once.count(each.target) > 1 for each in (row, *between))
        if columns and not repeated:
            names, others = ([str(each.target) for each in nodes] for nodes in (columns, between))
            found.append((tuple(names), str(row.target), tuple(others)))
    return found


def _by_names(module: nn.Module) -> list[Pair]:
    for names, behind in _NAMES:
        columns, row = [linear_at(module, name) for name in names], linear_at(module, behind)
        if row is not None and all(each is not None and outputs_of(each) == inputs_of(row) for each in columns):
            return [(names, behind, ())]
    return []


def _mixes(part: object) -> bool:
    return is_linear(part) or is_convolution(part)


def _columns(module: nn.Module, row: fx.Node, called: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the layers before a row, and those of each channel in between.

    There are none if something else lies between, or reads what does.
    """
    columns, between = list[fx.Node](), list[fx.Node]()
    spatial = is_convolution(_part(module, row))
    waiting, inside = [*row.all_input_nodes], {row}
    while waiting:
        node = waiting.pop()
        if node in inside:
            continue
        inside.add(node)
        if node in called:
            columns.append(node)
        elif _is_elementwise(module, node) or (spatial and _is_of_channels(module, node)):
            waiting += node.all_input_nodes
            if node.op == "call_module" and channel_groups(_part(module, node)) > 1:
                between.append(node)
        else:
            return [], []
    readers = {user for node in inside - {row} for user in node.users}
    alike = {outputs_of(_part(module, each)) for each in columns} == {inputs_of(_part(module, row))}
    alike = alike and all(channels_of(_part(module, each)) == inputs_of(_part(module, row)) for each in between)
    alike = alike and all(is_convolution(_part(module, each)) == spatial for each in columns)
    distinct = len({each.target for each in columns}) == len(columns)
    # A pair without an operation in between, or of narrow layers, would be correct too.
    return (columns, between) if readers <= inside and alike and distinct else ([], [])


def _is_of_channels(module: nn.Module, node: fx.Node) -> bool:
    if node.op != "call_module":
        return False
    part = _part(module, node)
    return type(part) in _OF_CHANNELS or channel_groups(part) > 1


def _is_elementwise(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        part = _part(module, node)
        activation = type(part).__module__ == "transformers.activations"
        return type(part) in _ELEMENTWISE_MODULES or activation
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in _ELEMENTWISE


def _part(module: nn.Module, node: fx.Node) -> Any:
    return module.get_submodule(str(node.target))


def _traced(module: nn.Module) -> fx.Graph | None:
    try:
        return _Tracer().trace(module)
    except Exception:  # any error of a forward that meets a proxy: it cannot be traced
        return None


@final
class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del module_qualified_name
        return not isinstance(m, nn.Sequential)  # pairs in other submodules are found there
