"""The layers of a captured model that may be split, and what else uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, TypeGuard

from torch import fx, nn

from graphpipe.graph import Op, SplitBranch
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.crossing_values import duplicated_inputs
from graphpipe.model.capture.groups import Groups

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LayerParameters(TypedDict):
    """The fields of an `OpSplit` that say which parameters its layer has."""

    weight: str
    weight_bytes: float
    bias: str | None
    bias_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers of a captured model, for the ways to split them."""

    model: MeasuredModel
    op_of: Mapping[fx.Node, str]
    """The operator of every node."""
    _users: Mapping[int, int]
    _inputs: Mapping[fx.Node, str]

    @staticmethod
    def of(model: MeasuredModel, groups: Groups, ops: Sequence[Op]) -> "Layers":
        """Return the layers of a captured model. `groups` are the nodes of the operators, in the same order."""
        return Layers(
            model=model,
            op_of={node: op.name for op, group in zip(ops, groups, strict=True) for node in group},
            _users=_users_of_parameters(model),
            _inputs={node: name for name, node in model.module_graph.inputs.items()},
        )

    def module(self, path: object) -> nn.Module:
        """Return the submodule at a path."""
        return self.model.module.get_submodule(str(path))

    def owns_parameters(self, layer: nn.Module) -> bool:
        """Return whether nothing but the call of a layer uses its parameters."""
        return all(self._users[id(each)] == 1 for each in layer.parameters())

    def may_be_split(self, op: Op) -> bool:
        """Return whether an operator works sample by sample, and all its parameters are trained or none is."""
        parameters = dict(self.model.module.named_parameters())
        return not op.whole_batch and len({parameters[name].requires_grad for name in op.parameters}) == 1

    def comes_from_elsewhere(self, value: fx.Node, op: Op) -> bool:
        """Return whether a value is an input of the model, or another operator sends it."""
        sent = self.op_of.get(value, op.name) != op.name and value in self.model.values.crossing
        return value in self._inputs or sent

    def only_read(self, nodes: Sequence[fx.Node]) -> fx.Node | None:
        """Return the only value that nodes of an operator read from elsewhere; None if there are others, or none.

        It is an input of the model, or another operator sends it.

        Glue that needs nothing but inputs of the model, such as `x[:, 3]`, belongs to no operator. It counts as what it
        reads.
        """
        repeated = duplicated_inputs([*nodes], self.model.values.duplicated)
        if any(self.model.parameters(node) for node in (repeated - self._inputs.keys())):
            return None
        values = {value for node in nodes for value in self.model.values.read_by(node)} - {*nodes}
        found = {*values, *(repeated & self._inputs.keys())}
        own = {self.op_of[node] for node in nodes}
        sent = all(value in self.model.values.crossing and self.op_of[value] not in own for value in values)
        return found.pop() if len(found) == 1 and sent else None

    def read_elsewhere(self, value: fx.Node, op: Op, reader: fx.Node) -> bool:
        """Return whether another node of an operator than `reader` reads a value."""
        return any(user is not reader and self.op_of.get(user) == op.name for user in value.users)

    def branch(self, value: fx.Node, start: int, stop: int) -> SplitBranch:
        """Return the branch that brings a value, for the features from `start` up to `stop`."""
        return SplitBranch(
            source=self.op_of.get(value),
            model_input=self._inputs.get(value),
            start=start,
            stop=stop,
            bytes_per_sample=self.model.readings[value].bytes_per_sample,
            value=value.name,
        )

    def branch_through(self, read: fx.Node, value: fx.Node, stop: int) -> SplitBranch:
        """Return the branch for all features or rows of a layer that reads `value`, which glue computes from `read`."""
        found = self.branch(read, 0, stop)
        return found if found.source else replace(found, bytes_per_sample=self.model.readings[value].bytes_per_sample)

    def parameters(self, layer: nn.Module) -> LayerParameters:
        """Return names and bytes of the weight and the bias of a layer. The bias may be absent."""
        weight, bias = (dict(layer.named_parameters()).get(name) for name in ("weight", "bias"))
        assert weight is not None
        return {
            "weight": self.model.parameter_names[id(weight)],
            "weight_bytes": float(weight.numel() * weight.element_size()),
            "bias": None if bias is None else self.model.parameter_names[id(bias)],
            "bias_bytes": 0.0 if bias is None else float(bias.numel() * bias.element_size()),
        }


def hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks on its forward or backward, or a parametrised weight."""
    return any(getattr(module, hooks) for hooks in _HOOKS) or hasattr(module, "parametrizations")


def is_table(layer: nn.Module) -> TypeGuard[nn.Embedding | nn.EmbeddingBag]:
    """Return whether a layer is an embedding or a bag whose weight may be cut: without a largest norm or sparse
    gradients, and a bag does not take the largest row."""
    if type(layer) is nn.EmbeddingBag and layer.mode == "max":
        return False
    return type(layer) in (nn.Embedding, nn.EmbeddingBag) and layer.max_norm is None and not layer.sparse


def value_read(call: fx.Node) -> fx.Node | None:
    """Return the only argument of a call of a submodule; None for other nodes and calls."""
    if call.op != "call_module" or call.kwargs or len(call.args) != 1 or not isinstance(call.args[0], fx.Node):
        return None
    return call.args[0]


def _users_of_parameters(model: MeasuredModel) -> dict[int, int]:
    """Return how many nodes, or submodules inside a node, hold each parameter; by identity."""
    found: dict[int, int] = {}
    for node in model.module_graph.graph.nodes:
        modules = model.module.get_submodule(str(node.target)).modules() if node.op == "call_module" else []
        held = [each for module in modules for each in module.parameters(recurse=False)]
        for each in held if node.op == "call_module" else model.parameters(node):
            found[id(each)] = found.get(id(each), 0) + 1
    return found
