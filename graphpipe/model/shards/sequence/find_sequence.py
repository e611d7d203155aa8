"""Finds how the ranks that share the layers of a model can divide the sequence between them, and measures it.

The graph of the model is measured as one of two ranks computes it. Half of what is divided is missing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from graphpipe.errors import InvalidInput
from graphpipe.graph import (
    Op,
    OpShards,
    ParameterSlice,
    SequenceModule,
    SequenceShards,
    ShardFigures,
    SubmoduleShards,
)
from graphpipe.model.capture.build_ops import MeasuredModel, build_ops, tensor_names
from graphpipe.model.capture.capture import Captured, Traced
from graphpipe.model.capture.crossing_values import crossing_values
from graphpipe.model.capture.fused_attention import FusedAttention
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.capture.shape_propagation import propagate_shapes
from graphpipe.model.function_caches import without_caches
from graphpipe.model.quiet import quiet_export
from graphpipe.model.shards.counting_team import CountingTeam, Exchanged, for_weights
from graphpipe.model.shards.drawn import Call
from graphpipe.model.shards.sequence.divided_nodes import divided_nodes, held_by
from graphpipe.model.shards.sequence.exchange import POSITIONS, gather, scatter
from graphpipe.model.shards.sequence.sequence_trial import try_sequence
from graphpipe.model.shards.shard_measuring import TRIED, shared_figures
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.split.submodules import Conversion, DividedNodes, sliced

_RANKS = 2
_COPIED = OpShards(
    most=1, submodules=(), parameters=(), parameter_bytes=0.0, figures=ShardFigures(flops_per_sample=0.0)
)
"""Of an operator of which ranks share nothing but the sequence."""


def with_sequence(
    model: nn.Module, traced: Traced, captured: Captured, found: Mapping[str, OpShards]
) -> dict[str, OpShards]:
    """Return the layouts of operators, with how ranks can also divide the sequence.

    Args:
        model: with or without data.
        traced: its graph.
        captured: the operators.
        found: layouts by operator.
    """
    modules = _modules(model, captured, found)
    measuring = _Measuring(model, traced, captured, found, modules)
    sequences = measuring.measured()
    if sequences is None:  # a submodule does not take shards of its real size: leave out those of its kind
        good = [path for paths in _kinds(model, modules) if measuring.of(paths).measured() for path in paths]
        sequences = measuring.of(good).measured() or {}
    return {
        **found,
        **{
            name: replace(found.get(name, replace(_COPIED, most=each.most)), sequence=each)
            for name, each in sequences.items()
        },
    }


def _modules(model: nn.Module, captured: Captured, found: Mapping[str, OpShards]) -> dict[str, SequenceModule]:
    first = {id(each): name for name, each in model.named_parameters()}
    own = dict(model.named_parameters(remove_duplicate=False))
    known: dict[Any, SequenceModule | None] = {}
    modules: dict[str, SequenceModule] = {}
    for op in captured.graph.ops:
        shards = found[op.name].submodules if op.name in found else ()
        for node in captured.nodes[op.name]:
            call = _call(node, captured.readings) if node.op == "call_module" else None
            if call is None:
                continue
            path = str(node.target)
            module, mine = model.get_submodule(path), _inside(shards, path)
            kind = op.work, _kind(module, path, mine, call)
            if kind not in known:
                # One of a kind is tried, under a path that stands for all.
                untried = captured.readings[node].flops / SAMPLES[1] > TRIED
                known[kind] = try_sequence(module, path, mine, call, untried=untried)
            tried = known[kind]
            if tried is not None:
                names = [path + name.removeprefix(tried.submodule) for name in tried.summed]
                summed = tuple(first[id(own[name])] for name in names)
                modules[path] = replace(tried, submodule=path, summed=summed)
    return modules


def _inside(shards: Sequence[SubmoduleShards], path: str) -> list[SubmoduleShards]:
    return [each for each in shards if each.submodule == path or each.submodule.startswith(f"{path}.")]


def _kind(module: nn.Module, path: str, shards: Sequence[SubmoduleShards], call: Call) -> Any:
    shapes = tuple((name, each.shape, each.requires_grad) for name, each in module.named_parameters())
    parts = tuple((each.submodule.removeprefix(path), each.style, each.parts) for each in shards)
    given = str(map_arg(call, lambda each: each))
    return type(module), repr(module), shapes, parts, given


def _kinds(model: nn.Module, modules: Mapping[str, SequenceModule]) -> list[list[str]]:
    kinds: dict[Any, list[str]] = {}
    for path, each in modules.items():
        kinds.setdefault((repr(model.get_submodule(path)), each.entrance), []).append(path)
    return [*kinds.values()]


def _call(node: fx.Node, readings: Mapping[fx.Node, Reading]) -> Call | None:
    """Return arguments like those of a call; None if their shapes are not known."""
    if any(readings[each].shape is None for each in node.all_input_nodes):
        return None

    def like(other: fx.Node) -> Tensor:
        reading = readings[other]
        assert reading.shape is not None
        made = torch.empty(reading.shape, dtype=reading.dtype, device="meta")
        return made.requires_grad_(reading.requires_grad)

    try:
        return map_arg(node.args, like), map_arg(node.kwargs, like)  # pyright: ignore[reportReturnType]
    except (RuntimeError, TypeError):  # a number of rows that depends on values
        return None


@dataclass(slots=True)
class _Measuring:
    """Measures the operators with shards of the sequence between what ranks share."""

    model: nn.Module
    traced: Traced
    captured: Captured
    shards: Mapping[str, OpShards]
    modules: Mapping[str, SequenceModule]
    team: CountingTeam = field(default_factory=CountingTeam)
    between: set[fx.Node] = field(default_factory=set[fx.Node])
    """Conversions of values that another operator reads. Which of them a plan needs depends on its stages."""
    op_of: dict[fx.Node, str] = field(init=False)
    """The operators of the nodes."""
    sent: dict[tuple[str, str], float] = field(init=False)
    """The values on edges, with their bytes per sample."""

    def __post_init__(self) -> None:
        self.op_of = {node: name for name, nodes in self.captured.nodes.items() for node in nodes}
        self.sent = {read.value: read.bytes_per_sample for read in self.captured.graph.reads}

    def of(self, paths: Iterable[str]) -> "_Measuring":
        """Return the same for some submodules."""
        return replace(self, modules={path: self.modules[path] for path in paths}, team=CountingTeam(), between=set())

    def measured(self) -> dict[str, SequenceShards] | None:
        """Return the figures by operator; None if a forward does not run so."""
        captured = self.captured
        shared = {path for path in self.modules for each in self.shards.values() if _inside(each.submodules, path)}
        held = held_by(self.model, captured.module_graph)
        nodes = [*captured.module_graph.graph.nodes]
        try:
            divided = divided_nodes(nodes, captured.readings, self.modules, shared, _RANKS, held)
        except InvalidInput:  # a submodule is called again, with a length that is odd
            return None
        if not divided.reading:
            return {}
        replaced = self._replace(divided)
        try:
            halves, sums = self._halves(divided)
        except Exception:  # any error of a forward that does not take shards
            return None
        finally:
            for parent, name, own in replaced:
                setattr(parent, name, own)
        return self._figures(divided, halves, sums)

    def _replace(self, divided: DividedNodes) -> list[tuple[nn.Module, str, nn.Module]]:
        traced, replaced, paths = self.traced, list[tuple[nn.Module, str, nn.Module]](), set[str]()
        parameters = dict(self.model.named_parameters(remove_duplicate=False))

        def slice_of(piece: ParameterSlice) -> nn.Parameter:
            view = sliced(traced.fake.get_parameter(piece.parameter).detach(), piece)
            return nn.Parameter(view, requires_grad=parameters[piece.parameter].requires_grad)

        with traced.mode:
            for op in self.captured.graph.ops:
                shards = self.shards[op.name].submodules if op.name in self.shards else ()
                made = SharedSubmodule(shards, self.team, slice_of, [*self.modules.values()])
                for node in self.captured.nodes[op.name]:
                    path = str(node.target)
                    if path in paths:  # several nodes may call one submodule
                        continue
                    if node.op == "call_module" and (node in divided.reading or _inside(shards, path)):
                        paths.add(path)
                        own = traced.fake.get_submodule(path)
                        part = self._part(made, node, own, divided)
                        parent = traced.fake.get_submodule(path.rpartition(".")[0])
                        setattr(parent, path.rpartition(".")[2], part)
                        replaced.append((parent, path.rpartition(".")[2], own))
        return replaced[::-1]

    def _part(self, made: SharedSubmodule, node: fx.Node, own: nn.Module, divided: DividedNodes) -> nn.Module:
        path = str(node.target)
        if node in divided.reading:
            return made.make_on_shards(own, path)
        return made.make(own, path)

    def _halves(self, divided: DividedNodes) -> tuple[dict[str, Op], dict[str, Exchanged]]:
        """Return all operators as measured, and what the ranks exchange in each of them."""
        traced, captured = self.traced, self.captured
        copied, groups = self._copied(divided)
        origin = captured.graph.origin
        attention = FusedAttention() if origin is not None and origin.fused_attention else None
        with traced.mode, quiet_export(), without_caches(traced.fake):
            readings = propagate_shapes(
                copied, traced.fake, captured.graph.inputs, captured.precision, attention, self.team.begin
            )
            half = MeasuredModel(
                module_graph=copied,
                values=crossing_values(copied.graph, readings),
                readings=readings,
                module=traced.fake,
                parameter_names=tensor_names(traced.fake),
                fused_attention=attention is not None,
            )
        ops, _ = build_ops(half, groups, (), captured.precision)
        names = [op.name for op in captured.graph.ops]
        inside = [[node for node in group if node not in self.between] for group in groups]
        sums = {name: self.team.exchanged(group, readings) for name, group in zip(names, inside, strict=True)}
        return dict(zip(names, ops, strict=True)), sums

    def _copied(self, divided: DividedNodes) -> tuple[ModuleGraph, tuple[tuple[fx.Node, ...], ...]]:
        """Return the graph with the conversions of values, and the nodes of each operator in it."""
        captured, graph = self.captured, fx.Graph()
        op_of = self.op_of
        env: dict[fx.Node, fx.Node] = {}
        converted: dict[tuple[fx.Node, Conversion], fx.Node] = {}
        groups: dict[str, list[fx.Node]] = {op.name: [] for op in captured.graph.ops}

        def read(value: fx.Node, reader: fx.Node) -> fx.Node:
            how = divided.conversion(value, None if reader.op == "output" else reader)
            if how is None:
                return env[value]
            if (value, how) not in converted:
                # What is gathered belongs to what made it, which is divided, as is what reads what is scattered.
                name = op_of.get(value if how == "gather" else reader, "")
                converted[value, how] = graph.call_function(self._conversion(how), (env[value],))
                converted[value, how].meta = dict(value.meta)
                if name:
                    groups[name].append(converted[value, how])
            if reader.op != "output" and op_of.get(reader) != op_of.get(value) and self._is_sent(value):
                self.between.add(converted[value, how])
            return converted[value, how]

        for node in captured.module_graph.graph.nodes:
            if node.op == "output":
                results = map_arg(node.args[0], lambda other, node=node: read(other, node))
                env[node] = graph.output(results)
            else:
                env[node] = graph.node_copy(node, lambda other, node=node: read(other, node))
            if node in op_of:
                groups[op_of[node]].append(env[node])
        module_graph = captured.module_graph
        inputs = {name: env[node] for name, node in module_graph.inputs.items()}
        return replace(module_graph, graph=graph, inputs=inputs), tuple(tuple(each) for each in groups.values())

    def _conversion(self, how: Conversion) -> Callable[[Tensor], Tensor]:
        convert = scatter if how == "scatter" else gather

        def converted(values: Tensor) -> Tensor:
            return convert(values, self.team)

        return converted

    def _figures(
        self, divided: DividedNodes, halves: Mapping[str, Op], exchanged: Mapping[str, Exchanged]
    ) -> dict[str, SequenceShards]:
        readings, found = self.captured.readings, dict[str, SequenceShards]()
        saved = self._saved(halves)
        whole = {op.name: op for op in self.captured.graph.ops}
        for name, nodes in self.captured.nodes.items():
            mine = [node for node in nodes if node in divided.reading or node in divided.returning]
            if not mine:
                continue
            work, sums = replace(halves[name].work, saved_bytes_per_sample=saved[name]), exchanged[name]
            if name not in self.captured.graph.returning:  # nothing that it reads has a gradient
                sums = for_weights(sums)
            values = [each for node in mine for each in (node, *node.all_input_nodes) if each in divided.returning]
            values += [value for value, reader in divided.scattered if reader in mine]
            shapes = [shape for each in values if (shape := readings[each].shape) is not None]
            called = {str(node.target): None for node in mine if node.op == "call_module"}
            found[name] = SequenceShards(
                most=gcd(*(shape[POSITIONS] for shape in shapes)),
                submodules=tuple(self.modules[path] for path in called if path in self.modules),
                figures=shared_figures(whole[name].work, work, sums),
                returned=self._returned(divided, name),
                taken=self._taken(divided, name),
                summed_bytes=self._summed_bytes(divided, whole[name]),
            )
        return found

    def _returned(self, divided: DividedNodes, name: str) -> tuple[str, ...]:
        """Return the values that leave an operator as shards, as edges name them."""
        mine = [node for node in self.captured.nodes[name] if node in divided.returning]
        return tuple(
            value[1] for value in dict.fromkeys(self._value(node, name) for node in mine) if value in self.sent
        )

    def _taken(self, divided: DividedNodes, name: str) -> tuple[tuple[str, str], ...]:
        """Return the values of other operators that an operator reads as shards."""
        found: dict[tuple[str, str], None] = {}
        for node in self.captured.nodes[name]:
            for value in node.all_input_nodes:
                shard = value in divided.returning and node in divided.reading
                source = self.op_of.get(value, name)
                if source != name and (shard or (value, node) in divided.scattered) and self._is_sent(value):
                    found[self._value(value, source)] = None
        return tuple(found)

    def _is_sent(self, value: fx.Node) -> bool:
        # What does not grow with the samples, such as positions, is computed again in each stage.
        return bool(self.sent.get(self._value(value, self.op_of.get(value, ""))))

    def _value(self, node: fx.Node, source: str) -> tuple[str, str]:
        leaves = any(self.op_of.get(user, source) != source for user in node.users)
        return source, "" if leaves and (source, "") in self.sent else node.name  # it sends one value

    def _summed_bytes(self, divided: DividedNodes, op: Op) -> float:
        parameters = dict(self.model.named_parameters())
        summed = (parameters[name] for name in op.parameters if name in divided.summed)
        return float(sum(each.numel() * each.element_size() for each in summed if each.requires_grad))

    def _saved(self, halves: Mapping[str, Op]) -> dict[str, float]:
        """Return what each operator saves per sample, as one of two ranks."""
        saved = {name: half.work.saved_bytes_per_sample for name, half in halves.items()}
        for edge in self.captured.graph.edges:
            # A head that gathers the value of a norm saves it in the norm's place. It counts for the norm's operator,
            # as without a gather.
            most = self.captured.graph[edge.target].work.saved_bytes_per_sample
            if (more := saved[edge.target] - most) > 0:
                saved[edge.target] = most
                saved[edge.source] += more
        return saved
