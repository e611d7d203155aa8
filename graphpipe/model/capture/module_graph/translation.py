"""From an exported program to a module graph: recorded calls become calls again, everything else becomes glue."""

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_aggregate

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.capture.module_graph.calls.call_outcome import Form, Size
from graphpipe.model.capture.module_graph.calls.hidden_effects import CHANGE
from graphpipe.model.capture.module_graph.calls.opaque_calls import OpaqueCall, is_opaque_call
from graphpipe.model.capture.module_graph.failures import CannotExpress
from graphpipe.model.capture.module_graph.module_graph import (
    ModuleGraph,
    device_of,
    input_placeholder,
    sample_count,
    stand_in,
)
from graphpipe.model.capture.module_graph.rebuild_containers import rebuild_containers
from graphpipe.model.capture.module_graph.writes import differentiable, written
from graphpipe.model.hidden.raising_branches import ASSERTION
from graphpipe.model.hidden.registered_tensors import RegisteredTensors
from graphpipe.model.torch_private import (
    TreeSpec,
    flatten,
    is_higher_order,
    leaf,
    size_at,
    switches_gradients,
    unflatten,
)

_PLAIN = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class Translation:
    """Translates an exported program to a module graph, node by node."""

    def __init__(
        self,
        program: ExportedProgram,
        calls: list[OpaqueCall],
        names: list[str],
        registered: RegisteredTensors,
        outputs: Sequence[str] = (),
        written: Collection[str] = (),
    ) -> None:
        self.program = program
        self.registered = registered
        self.calls = calls
        self.graph = fx.Graph()
        self.env: dict[fx.Node, Any] = {}
        self.constants: dict[str, Tensor] = {}
        self.inputs = {name: input_placeholder(self.graph, name) for name in names}
        self.anchor = next(iter(self.inputs.values()))
        self.samples = self.graph.call_function(sample_count, (self.anchor,))
        self.device = self.graph.call_function(device_of, (self.anchor,))
        for node in (self.samples, self.device):
            node.meta["owner"] = ""
        self.batch = ""
        # The new values of the model's own buffers.
        mutated = program.graph_signature.buffers_to_mutate
        self.writes = {buffer: node for node in program.graph.nodes if (buffer := mutated.get(node.name))}
        self.buffers: dict[str, fx.Node] = {}
        self.cloned = {*self.writes, *written}
        self.results, self.output_spec = self._results(outputs)

    def module_graph(self) -> ModuleGraph:
        """Return the module graph.

        Raises:
            CannotExpress: a forward changes a buffer, or an operator is not a plain function of tensors.
            InvalidInput: the model's output has no such entry.
        """
        self._check_mutations()
        self._translate_inputs()
        wanted = self._wanted()
        for node in self.program.graph.nodes:
            if node in wanted and node.op == "call_function":
                self.env[node] = self._translate(node)
            elif node in wanted and node.op == "get_attr":
                self.env[node] = self._block(node)
        for buffer, value in self.writes.items():
            self._write(buffer, value)
        self.graph.output(tuple(self._argument(item) for item in self.results))
        return ModuleGraph(graph=self.graph, inputs=self.inputs, output_spec=self.output_spec, constants=self.constants)

    def _check_mutations(self) -> None:
        for buffer in self.writes:
            if "." in buffer:  # its submodule stays whole
                raise CannotExpress(buffer.rpartition(".")[0], f"changes the buffer '{buffer}'")
        mutated = self.program.graph_signature.parameters_to_mutate
        for node in self.program.graph.nodes:
            if node.name in mutated:
                raise CannotExpress(owner_of(node), f"changes the weight '{mutated[node.name]}'", CHANGE)

    def _translate_inputs(self) -> None:
        names = iter(self.inputs.values())
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                self.env[node] = given = next(names)
                _describe(given, node.meta["val"].shape)
                self.batch = self.batch or str(node.meta["val"].shape[0])
            elif node.users and spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                assert spec.target is not None
                constant = spec.kind == InputKind.CONSTANT_TENSOR
                self.env[node] = self._constant(spec.target) if constant else self._attribute(spec.target)

    def _attribute(self, target: str) -> fx.Node:
        node = self._get_attr(target)
        self.buffers[target] = node
        return self._cloned(node) if target in self.cloned else node

    def _constant(self, target: str) -> fx.Node:
        tensor = self.program.constants[target]
        assert isinstance(tensor, Tensor)
        if (name := self.registered.name_of(tensor)) is not None:
            return self._attribute(name)
        self.constants[target] = tensor
        moved = self.graph.call_method("to", (self._get_attr(target), self.device))
        moved.meta["owner"] = ""
        return moved

    def _get_attr(self, target: str) -> fx.Node:
        node = self.graph.create_node("get_attr", target)
        node.meta["owner"] = ""
        return node

    def _cloned(self, buffer: fx.Node) -> fx.Node:
        # Those who read a buffer keep its value for the backward, and the next micro-batch writes into it before that.
        found = self.graph.call_function(torch.clone, (buffer,))
        found.meta["owner"] = ""
        return found

    def _write(self, buffer: str, value: fx.Node) -> None:
        if buffer not in self.buffers:  # it is not read
            self._attribute(buffer)
        new = self.graph.call_function(written, (self.buffers[buffer], self.env[value]))
        new.meta["owner"] = ""
        new.meta["writes"] = buffer

    def _results(self, wanted: Sequence[str]) -> tuple[list[Any], TreeSpec]:
        # The leaves of the model's output, or of a dict of its wanted entries.
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        specs = self.program.graph_signature.output_specs
        found = [item for item, spec in zip(output.args[0], specs, strict=True) if spec.kind == OutputKind.USER_OUTPUT]
        arrangement = self.program.call_spec.out_spec
        assert arrangement is not None
        if not wanted:
            return found, arrangement
        returned = unflatten(found, arrangement)
        known = [str(name) for name in returned] if isinstance(returned, Mapping) else []
        for name in wanted:
            if name not in known:
                what = f"the model does not return '{name}'" if known else "the model does not return a dict"
                raise InvalidInput(what, where="outputs", remedy=nearest(name, known) if known else "Leave it out.")
        return flatten({name: returned[name] for name in wanted})

    def _wanted(self) -> set[fx.Node]:
        checks = [node for node in self.program.graph.nodes if node.target is ASSERTION]
        stack = [item for item in [*self.results, *self.writes.values(), *checks] if isinstance(item, fx.Node)]
        wanted: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node not in wanted and not self._is_batch_size(node):
                stack += node.all_input_nodes
            wanted.add(node)
        return wanted

    def _block(self, node: fx.Node) -> fx.GraphModule:
        # The graph of a block in which gradients are switched on or off.
        inner = getattr(node.graph.owning_module, str(node.target), None)
        if isinstance(inner, fx.GraphModule) and all(switches_gradients(user.target) for user in node.users):
            return inner
        raise CannotExpress(owner_of(node), "switches a mode of torch or branches on values inside the graph")

    def _is_batch_size(self, node: fx.Node) -> bool:
        return self._is_batch(node.meta.get("val"))

    def _is_batch(self, size: object) -> bool:
        return isinstance(size, torch.SymInt) and str(size) == self.batch

    def _translate(self, node: fx.Node) -> object:
        if self._is_batch_size(node):
            return self.samples
        if is_opaque_call(node.target):
            return self._translate_call(node)
        if node.target is operator.getitem and isinstance(self.env[node.args[0]], list):  # pyright: ignore[reportArgumentType]
            return self.env[node.args[0]][node.args[1]]  # pyright: ignore[reportArgumentType]
        if switches_gradients(node.target):
            return self._translate_block(node)
        if is_higher_order(node.target):
            raise CannotExpress(owner_of(node), f"uses {node.target}")
        args, kwargs = self._argument(node.args), self._argument(dict(node.kwargs))
        target = torch.ops.graphpipe.holds.default if node.target is ASSERTION else differentiable(node)
        new = self.graph.call_function(target, args, kwargs)  # pyright: ignore[reportArgumentType]
        new.meta["owner"] = owner_of(node)
        if node.target is ASSERTION:
            new.meta["checks"] = True
        if isinstance(node.meta.get("val"), Tensor):
            _describe(new, node.meta["val"].shape)
        return new

    def _translate_block(self, node: fx.Node) -> list[Any]:
        # Its results are detached already (see `detach_blocks`), so its nodes are computed like any others.
        _, block, *given = node.args
        inner: fx.Graph = self.env[block].graph  # pyright: ignore[reportArgumentType]
        arguments = iter(given)
        results: list[Any] = []
        for each in inner.nodes:
            if each.op == "placeholder":
                self.env[each] = self._argument(next(arguments))
            elif each.op == "get_attr":
                self.env[each] = self._block(each)
            elif each.op == "call_function":
                self.env[each] = self._translate(each)
            elif each.op == "output":
                results = [self._argument(result) for result in each.args[0]]
        return results

    def _argument(self, value: Any) -> Any:
        def translate(item: Any) -> Any:
            if isinstance(item, fx.Node):
                return self.env[item]
            return self.device if isinstance(item, torch.device) else item

        return map_aggregate(value, translate)

    def _translate_call(self, node: fx.Node) -> list[fx.Node]:
        # The nodes of the output tensors, then of the arguments that it wrote into, as they are after the call.
        tensors, sizes, index = node.args
        call = self.calls[index]  # pyright: ignore[reportArgumentType, reportCallIssue]
        owner = call.path.rpartition(".")[0]
        given = list(self._argument(tensors))
        for position in call.outcome.unread:
            given[position] = self._stand_in(tensors[position], owner) or given[position]  # pyright: ignore
        written = [position for position, _ in call.outcome.written]
        for position in written:
            given[position] = self.graph.call_function(torch.clone, (given[position],))
            given[position].meta["owner"] = owner
            given[position].meta["written_by"] = call.path
        args, kwargs = self._call_arguments(call, given, self._numbers(call, list(self._argument(sizes))))
        new = self.graph.call_module(call.path, args, kwargs)
        new.meta["owner"] = owner
        new.meta["repeatable"] = call.outcome.repeatable
        if call.outcome.statistic:
            new.meta["statistic"] = call.outcome.statistic
        if call.outcome.changed:
            new.meta["changes"] = call.outcome.changed
        if call.outcome.spec.is_leaf():
            if call.outcome.forms:
                _describe(new, call.outcome.forms[0].shape)
            return [new, *(given[position] for position in written)]
        leaves: list[fx.Node] = []
        for position, output in enumerate(call.outcome.leaves):
            if isinstance(output, Form):
                leaves.append(self.graph.call_function(leaf, (new, position)))
                leaves[-1].meta["owner"] = owner
                _describe(leaves[-1], output.shape)
        return [*leaves, *(given[position] for position in written)]

    def _numbers(self, call: OpaqueCall, numbers: list[Any]) -> list[Any]:
        # Of the sizes and truth values that a call gets, the truth values are numbers until here.
        first = len(call.size_slots)
        return [*numbers[:first], *(self._truth(each, call) for each in numbers[first:])]

    def _truth(self, number: fx.Node, call: OpaqueCall) -> fx.Node:
        new = self.graph.call_function(bool, (number,))
        new.meta["owner"] = call.path.rpartition(".")[0]
        return new

    def _stand_in(self, node: fx.Node, owner: str) -> fx.Node | None:
        # A tensor of this node's shape, dtype and device, for a call that does not read its values. None if its shape
        # is not known to be constant in all dimensions that are not samples.
        value = node.meta["val"]
        sizes = [self._size(size) for size in value.shape]
        if not all(isinstance(size, int | fx.Node) for size in sizes):
            return None
        new = self.graph.call_function(stand_in, (self.device, value.dtype, tuple(sizes)))
        new.meta["owner"] = owner
        return new

    def _size(self, size: Any) -> Any:
        # A size of a stand-in: a multiple of the number of samples becomes a node.
        if isinstance(size, int) or self._is_batch(size):
            return size if isinstance(size, int) else self.samples
        try:
            rows, twice = (size_at(size, samples) for samples in (1, 2))
        except ValueError:  # it depends on values
            return size
        if twice != 2 * rows:
            return size
        new = self.graph.call_function(operator.mul, (self.samples, rows))
        new.meta["owner"] = ""
        return new

    def _call_arguments(self, call: OpaqueCall, tensors: list[fx.Node], sizes: list[Any]) -> tuple[Any, Any]:
        leaves = list(call.constants)
        for value in leaves:
            if not isinstance(value, _PLAIN):
                raise CannotExpress(call.path.rpartition(".")[0], f"passes a {type(value).__name__} to {call.path}")
        slots = [*call.tensor_slots, *call.size_slots, *call.truth_slots]
        for slot, value in zip(slots, [*tensors, *sizes], strict=True):
            leaves[slot] = value
        args, kwargs = rebuild_containers(self.graph, unflatten(leaves, call.inputs), call.path.rpartition(".")[0])
        return args, kwargs


def _describe(node: fx.Node, shape: Sequence[Any]) -> None:
    # A size that is not a number, or a form's that grows, contains samples.
    node.meta["dimensions"] = len(shape)
    grow = [size.linear or size.square if isinstance(size, Size) else not isinstance(size, int) for size in shape]
    node.meta["samples_in"] = tuple(at for at, grows in enumerate(grow) if grows)


def owner_of(node: fx.Node) -> str:
    """Return the path of the submodule whose forward a node of an exported program comes from, "" for the model."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return "" if path.startswith("_empty_nn_module_stack") else path.partition("@")[0]
