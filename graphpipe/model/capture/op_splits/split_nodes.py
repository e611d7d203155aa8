"""Splits the nodes of a captured model, as its operators are split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, OpSplit, splittable, with_split
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.crossing_values import CrossingValues
from graphpipe.model.capture.op_splits.row_splits import glue_before
from graphpipe.model.capture.reading import Reading

_ADD, _CONCATENATE = torch.ops.aten.add.Tensor, torch.ops.aten.cat.default
REST = "rest"
"""In the path of a submodule whose layer is replaced by the result of its parts: `layer0.rest`."""


def split_like(captured: Captured, graph: Graph) -> Captured:
    """Return a captured model with the operators split that were split in `graph`, which was captured from it.

    Raises:
        InvalidInput: an operator of this model cannot be split in that way.
    """
    done = 0 if captured.graph.origin is None else len(captured.graph.origin.split_ops)
    for split in () if graph.origin is None else graph.origin.split_ops[done:]:
        found = next((each for each in _ways(captured, len(split.branches)) if each.cuts_like(split)), None)
        if found is None:
            remedy = f"Plan again, or remove hooks, parametrisations and other uses of '{split.layer}' from the model."
            what = f"the plan splits '{split.layer}', which cannot be split in that way in this model"
            raise InvalidInput(what, where="split", remedy=remedy)
        captured = _with_split(captured, found)
    return captured


def _ways(captured: Captured, parts: int) -> list[OpSplit]:
    return [each if each.by == "inputs" else each.into(parts) for each in splittable(captured.graph)]


def _with_split(captured: Captured, split: OpSplit) -> Captured:
    call = next(node for node in captured.nodes[split.op] if (node.op, node.target) == ("call_module", split.called))
    graph = with_split(captured.graph, split)
    made = _SplitGraph.of(captured, call, split)
    env = made.env
    order = {node: position for position, node in enumerate(made.graph.nodes)}
    nodes = {op: [env[node] for node in group if node in env] for op, group in captured.nodes.items()}
    nodes[split.op] = sorted({*nodes[split.op], *made.joins}, key=order.__getitem__)
    nodes |= {name: [*made.glue[part], part] for name, part in zip(split.parts, made.parts, strict=True)}
    inputs = {name: env[node] for name, node in captured.module_graph.inputs.items()}
    crossing = {env[node] for node in captured.values.crossing if node in env}
    return replace(
        captured,
        graph=graph,
        module_graph=replace(captured.module_graph, graph=made.graph, inputs=inputs),
        values=CrossingValues(
            duplicated=frozenset(env[node] for node in captured.values.duplicated),
            crossing=frozenset({*crossing, *made.parts}),
        ),
        readings=made.readings | {env[node]: reading for node, reading in captured.readings.items() if node in env},
        nodes={op.name: tuple(nodes[op.name]) for op in graph.ops},
    )


@dataclass(slots=True)
class _SplitGraph:
    # A copy of a module graph in which the call of a layer is split.
    graph: fx.Graph
    env: dict[fx.Node, fx.Node]
    """The copy of every node but those that only the call needs: a concatenation by inputs, or glue before a look-up by
    rows. That of the call is the result of the split operator."""
    parts: list[fx.Node] = field(default_factory=list[fx.Node])
    glue: dict[fx.Node, list[fx.Node]] = field(default_factory=dict[fx.Node, list[fx.Node]])
    """What each part computes before its look-up."""
    joins: list[fx.Node] = field(default_factory=list[fx.Node])
    """The additions or the concatenation of the parts' results."""
    readings: dict[fx.Node, Reading] = field(default_factory=dict[fx.Node, Reading])
    """Of the new nodes."""

    @staticmethod
    def of(captured: Captured, call: fx.Node, split: OpSplit) -> "_SplitGraph":
        made, trains = _SplitGraph(fx.Graph(), {}), captured.graph[split.op].trainable
        glue = glue_before(call, captured.nodes[split.op]) if split.by == "rows" else ()
        left_out = {*call.all_input_nodes} if split.by == "inputs" else _needed_only_by(call, glue)
        for node in captured.module_graph.graph.nodes:
            if node is call:
                made.env[node] = made.add_call(captured.readings, call, split, glue, trains=trains)
            elif node not in left_out:
                made.env[node] = made.graph.node_copy(node, made.env.__getitem__)
        return made

    def add_call(
        self,
        known: Mapping[fx.Node, Reading],
        call: fx.Node,
        split: OpSplit,
        glue: Sequence[fx.Node],
        *,
        trains: bool,
    ) -> fx.Node:
        """Add the parts, the sum or concatenation of their results, and the rest of the submodule that is called."""
        (read,) = call.args
        assert isinstance(read, fx.Node)
        values = read.all_input_nodes if split.by == "inputs" else [read] * len(split.branches)
        for number, (path, value) in enumerate(zip(split.parts, values, strict=True)):
            own = self._copies(glue, known)
            part = self.graph.call_module(path, (own[value] if value in own else self.env[value],))
            self.readings[part] = _result(known, call, value, split, number, trains=trains)
            self.glue[part] = [*own.values()]
            self.parts.append(part)
        total = self._sum() if split.sums else self._concatenation(known[call])
        if not split.is_called:
            total = self.graph.call_module(f"{split.called}.{REST}", (total,))
        for node in (*self.parts, *self.joins, total):
            node.meta = dict(call.meta)
        return total

    def _copies(self, glue: Sequence[fx.Node], known: Mapping[fx.Node, Reading]) -> dict[fx.Node, fx.Node]:
        own: dict[fx.Node, fx.Node] = {}
        for node in glue:
            own[node] = self.graph.node_copy(node, lambda other: own[other] if other in own else self.env[other])
            self.readings[own[node]] = known[node]
        return own

    def _sum(self) -> fx.Node:
        total = self.parts[0]
        for part in self.parts[1:]:
            gradient = self.readings[total].requires_grad or self.readings[part].requires_grad
            before, total = total, self.graph.call_function(_ADD, (total, part))
            self.readings[total] = replace(self.readings[before], requires_grad=gradient)
            self.joins.append(total)
        return total

    def _concatenation(self, whole: Reading) -> fx.Node:
        total = self.graph.call_function(_CONCATENATE, (self.parts, -1))
        self.readings[total] = whole
        self.joins.append(total)
        return total


def _needed_only_by(call: fx.Node, glue: Sequence[fx.Node]) -> set[fx.Node]:
    # The glue that only leads to a call.
    found = {call}
    for node in reversed(glue):
        found |= {node} if node.users.keys() <= found else set()
    return found - {call}


def _result(
    known: Mapping[fx.Node, Reading], call: fx.Node, value: fx.Node, split: OpSplit, number: int, *, trains: bool
) -> Reading:
    # Of one part.
    branch, reading = split.branches[number], known[value]
    assert reading.sample_shape is not None
    if split.by == "rows":
        return known[call]
    if split.by == "outputs":
        whole = known[call]
        assert whole.sample_shape is not None
        shape = (*whole.sample_shape[:-1], branch.stop - branch.start)
        return Reading(sample_shape=shape, dtype=whole.dtype, requires_grad=whole.requires_grad)
    outputs = split.weight_bytes / reading.dtype.itemsize / split.branches[-1].stop
    shape = (*reading.sample_shape[:-1], round(outputs))
    return Reading(sample_shape=shape, dtype=reading.dtype, requires_grad=trains or reading.requires_grad)
