"""Which nodes of a graph compute shards of the sequence, if the ranks of a replica divide it.

A value of a sequence is (n, positions, width). A node that computes shards reads shards: whole values of a sequence are
scattered before it. Another node reads whole values: shards are gathered before it.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import SequenceModule
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph, mode_dropout
from graphpipe.model.capture.reading import Reading
from graphpipe.model.split.submodules import DividedNodes
from graphpipe.model.torch_private import leaf

_aten = torch.ops.aten
_LEAVES = frozenset([operator.getitem, leaf])
"""Take one of what a call returns."""
_LIKE_POINTWISE = frozenset([*_LEAVES, mode_dropout, _aten._to_copy.default, _aten.to.dtype, _aten.alias.default])
_STATEFUL = ("written_by", "writes", "changes", "checks")
"""What nodes note that write."""


def divided_nodes(
    nodes: Sequence[fx.Node],
    readings: Mapping[fx.Node, Reading],
    modules: Mapping[str, SequenceModule],
    shared: Collection[str],
    ranks: int,
    held: Callable[[fx.Node], Iterable[str]],
    *,
    left_whole: Collection[str] = (),
) -> DividedNodes:
    """Return which nodes of a stage compute shards.

    Args:
        nodes: of the stage, in order of execution.
        readings: of all nodes.
        modules: submodules that can be called with shards, by path.
        shared: paths of those among them of which ranks share layers. The others only follow these.
        ranks: how many divide the sequence.
        held: returns the names of the parameters that a node reads itself.
        left_whole: names of parameters whose gradients ranks must have whole.

    Raises:
        InvalidInput: a sequence that a shared submodule reads has a length that so many ranks do not divide.
    """
    known = {path for path, module in modules.items() if not {*module.summed} & {*left_whole}}
    while True:
        found = _Division(nodes, readings, {path: modules[path] for path in known}, shared, ranks, held).found()
        whole = {name for node in nodes if node not in found.reading for name in held(node)}
        mixed = {path for path in known if whole & {*modules[path].summed}}
        if not mixed & {str(node.target) for node in found.reading if node.op == "call_module"}:
            return found
        known -= mixed


class _Division:
    def __init__(
        self,
        nodes: Sequence[fx.Node],
        readings: Mapping[fx.Node, Reading],
        modules: Mapping[str, SequenceModule],
        shared: Collection[str],
        ranks: int,
        held: Callable[[fx.Node], Iterable[str]],
    ) -> None:
        self.nodes, self.readings, self.modules, self.shared = nodes, readings, modules, shared
        self.ranks, self.held = ranks, held
        self.inside = frozenset(nodes)
        self.reading: set[fx.Node] = set()
        self.returning: set[fx.Node] = set()
        self.scattered: set[tuple[fx.Node, fx.Node]] = set()
        self.summed: set[str] = set()

    def found(self) -> DividedNodes:
        """Return the division, node by node."""
        for node in self.nodes:
            if not any(key in node.meta for key in _STATEFUL):
                self._add(node)
        return DividedNodes(
            reading=frozenset(self.reading),
            returning=frozenset(self.returning),
            scattered=frozenset(self.scattered),
            summed=frozenset(self.summed),
        )

    def _add(self, node: fx.Node) -> None:
        if node.op == "call_module" and (module := self.modules.get(str(node.target))) is not None:
            self._add_call(node, module)
        elif node.op == "call_function" and any(each in self.returning for each in node.all_input_nodes):
            self._add_glue(node)

    def _add_call(self, node: fx.Node, module: SequenceModule) -> None:
        values = [each for each in node.all_input_nodes if self.is_sequence(each)]
        results = [node] if self.readings[node].shape is not None else [*node.users]
        if any(each.target not in _LEAVES for each in results if each is not node):
            return
        sequences = [each for each in results if self.is_sequence(each)]
        unlike = any(each in self.returning and each not in values for each in node.all_input_nodes)
        if unlike or not (values or sequences):
            return
        for each in (*values, *sequences):
            if self._length(each) % self.ranks:
                raise InvalidInput(
                    f"{self.ranks} devices divide sequences, and '{each.name}' has {self._length(each)} positions",
                    where=f"inputs of '{node.target}'",
                    remedy=f"Pad the samples to a multiple of {self.ranks}, or plan without sequence_parallel.",
                )
        follows = any(each in self.returning for each in values) or self._leads(node)
        widens = sum(map(self._width, sequences)) > sum(map(self._width, values))
        if str(node.target) not in self.shared and (widens or not follows):
            return  # wide results, such as logits, would take longer to gather than to compute
        self.reading.add(node)
        self.scattered |= {(each, node) for each in values if each not in self.returning}
        self.summed |= {*module.summed}
        if module.returns_shards:
            self.returning.add(node)

    def _leads(self, node: fx.Node) -> bool:
        # A norm before layers that are shared: its value would be scattered anyway.
        return any(
            user in self.inside and str(user.target) in self.shared and str(user.target) in self.modules
            for user in node.users
            if user.op == "call_module"
        )

    def _add_glue(self, node: fx.Node) -> None:
        function, length = node.target, self._length(node)
        if function in _LEAVES and self.readings[node.all_input_nodes[0]].shape is None:
            self.reading.add(node)  # of what a call returns
            if self.is_sequence(node):
                self.returning.add(node)
            return
        tags = getattr(function, "tags", ())
        plain = torch.Tag.pointwise in tags or function in _LIKE_POINTWISE
        if function in _LEAVES or not plain or not length or not self.is_value(node) or length % self.ranks:
            return
        scattered: set[tuple[fx.Node, fx.Node]] = set()
        copied: list[fx.Node] = []
        for each in node.all_input_nodes:
            if each in self.returning:
                if self._length(each) != length:
                    return
            elif self.readings[each].shape is not None and self._length(each) not in (0, 1):
                if self._length(each) != length:
                    return
                scattered.add((each, node))
            elif each.op == "get_attr" and len(each.users) > 1 and [*self.held(each)]:
                return  # others may read the parameter whole
            else:
                copied.append(each)
        self.reading.add(node)
        self.returning.add(node)
        self.scattered |= scattered
        self.summed |= {name for each in copied if each.op == "get_attr" for name in self.held(each)}

    def is_value(self, node: fx.Node) -> bool:
        """Return whether a value has samples, positions and a width."""
        return len(self.readings[node].sample_shape or ()) == 2

    def is_sequence(self, node: fx.Node) -> bool:
        """Return whether it also has a gradient: others, such as the angles of positions, are read whole."""
        reading = self.readings[node]
        return self.is_value(node) and reading.requires_grad and reading.dtype.is_floating_point

    def _width(self, node: fx.Node) -> int:
        return (self.readings[node].shape or (0,))[-1]

    def _length(self, node: fx.Node) -> int:
        shape = self.readings[node].shape or ()
        return shape[-2] if len(shape) > 1 else 0


def held_by(model: nn.Module, module_graph: ModuleGraph) -> Callable[[fx.Node], Iterable[str]]:
    """Return what gives the names of the parameters that a node of a model's graph reads itself."""
    first = {id(each): name for name, each in model.named_parameters()}
    modules = dict(model.named_modules())

    def held(node: fx.Node) -> Iterable[str]:
        if node.op == "call_module" and str(node.target) in modules:  # and no part of a split layer
            return [first[id(each)] for each in modules[str(node.target)].parameters()]
        if node.op == "get_attr" and node.target not in module_graph.constants:
            path, _, name = str(node.target).rpartition(".")
            value = getattr(modules.get(path), name, None)
            return [first[id(value)]] if isinstance(value, nn.Parameter) else []
        return []

    return held
