"""Finds linear layers with only elementwise operations between them, in the forward of a small module.

x -> up -----> gelu ---> * -> down ->        columns: up, gate      row: down
x -> gate ---------------^
"""

from typing import Any, final

from torch import fx, nn

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
_NAMES: tuple["Pair", ...] = (
    (("wi_0", "wi_1"), "wo"),
    (("wi",), "wo"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("intermediate.dense",), "output.dense"),
)
"""Layers in forwards that ask for the dtype of a value, which cannot be traced: of T5, Llama, BERT and their kin."""
_FEW = 64
"""A module with more submodules is no block of a few layers, and tracing it takes time."""

Pair = tuple[tuple[str, ...], str]
"""Layers that share their outputs, and the layer that reads only these."""


def linear_pairs(module: nn.Module) -> list[Pair]:
    """Return the pairs among the linear layers that a module calls itself, by their names in it."""
    if type(module) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return [(("linear1",), "linear2")]  # their forwards branch on values, which cannot be traced
    parts = [*module.modules()]
    if sum(map(is_linear, parts)) < 2 or len(parts) > _FEW:
        return _by_names(module)
    graph = _traced(module)
    if graph is None:
        return _by_names(module)
    called = [node for node in graph.nodes if node.op == "call_module" and is_linear(_part(module, node))]
    found: list[Pair] = []
    for row in called:
        columns = _columns(module, row, called)
        repeated = [each.target for each in called].count(row.target) > 1
        if columns and not repeated:
            found.append((tuple(str(each.target) for each in columns), str(row.target)))
    return found


def _by_names(module: nn.Module) -> list[Pair]:
    for names, behind in _NAMES:
        columns, row = [linear_at(module, name) for name in names], linear_at(module, behind)
        if row is not None and all(each is not None and outputs_of(each) == inputs_of(row) for each in columns):
            return [(names, behind)]
    return []


def _columns(module: nn.Module, row: fx.Node, called: list[fx.Node]) -> list[fx.Node]:
    """Return the layers before a row, if all that lies between is elementwise and read by nothing else; else none."""
    columns: list[fx.Node] = []
    waiting, inside = [*row.all_input_nodes], {row}
    while waiting:
        node = waiting.pop()
        if node in inside:
            continue
        inside.add(node)
        if node in called:
            columns.append(node)
        elif _is_elementwise(module, node):
            waiting += node.all_input_nodes
        else:
            return []
    readers = {user for node in inside - {row} for user in node.users}
    alike = {outputs_of(_part(module, each)) for each in columns} == {inputs_of(_part(module, row))}
    distinct = len({each.target for each in columns}) == len(columns)
    # A pair without an operation in between, or of narrow layers, would be correct too.
    return columns if readers <= inside and alike and distinct else []


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
