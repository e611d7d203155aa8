"""Operators of a captured graph from groups of nodes: names, parameters, work, edges."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn

from graphpipe.graph import Edge, Op, Shared, Work
from graphpipe.model.capture.crossing_values import Values, free_needs, is_anchor
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.module_graph.module_graph import Skeleton
from graphpipe.model.capture.shape_propagation import SAMPLES, Reading, attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What operators are made from."""

    skeleton: Skeleton
    values: Values
    readings: Mapping[fx.Node, Reading]
    module: nn.Module
    """The model, or its twin."""
    parameter_names: Mapping[int, str]
    """Fully qualified names by identity of the parameter; a tied parameter has its first name."""

    def parameters(self, node: fx.Node) -> list[nn.Parameter]:
        """Return the parameters that a node itself reads."""
        if node.op == "call_module":
            return list(self.module.get_submodule(str(node.target)).parameters())
        if node.op == "get_attr" and node.target not in self.skeleton.constants:
            found = attribute(self.module, node.target)
            return [found] if isinstance(found, nn.Parameter) else []
        return []

    def parameter_elements(self, node: fx.Node) -> int:
        """Return the number of elements of the parameters that a node itself reads."""
        return sum(parameter.numel() for parameter in self.parameters(node))


def needs_whole_batch(node: fx.Node, names: Collection[str]) -> bool:
    """True for a call of one of the submodules, or of a submodule inside one, and for glue inside one."""
    here = str(node.target) if node.op == "call_module" else node.meta.get("owner", "")
    return any(here == name or here.startswith(name + ".") for name in names)


def build_ops(parts: Parts, groups: Groups, whole_batch: Collection[str]) -> tuple[tuple[Op, ...], tuple[Edge, ...]]:
    """Return one operator per group, and the edges between them."""
    names = group_names(parts, groups)
    where = {node: name for name, group in zip(names, groups, strict=True) for node in group}
    crossing = _crossing(parts, groups, where)
    sent = {value: None for values in crossing.values() for value in values}
    saved = _saved_bytes(parts, groups)
    ops = [
        _op(parts, name, group, whole_batch, saved[name], [value for value in sent if where[value] == name])
        for name, group in zip(names, groups, strict=True)
    ]
    edges = [
        Edge(source=source, target=target, bytes_per_sample=sum(parts.readings[v].bytes_per_sample for v in values))
        for (source, target), values in crossing.items()
    ]
    return tuple(ops), tuple(edges)


def group_names(parts: Parts, groups: Groups) -> tuple[str, ...]:
    """Return the operators' names, in order of the groups: a submodule's path, `#2` and so on where it repeats."""
    counts: Counter[str] = Counter()
    names: list[str] = []
    for group in groups:
        name = _name(_principal(parts, group))
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return tuple(names)


def _principal(parts: Parts, group: Sequence[fx.Node]) -> fx.Node:
    # The node an operator is named after: the call with most parameters, else the glue with most FLOPs.
    calls = [node for node in group if node.op == "call_module"]
    rest = [node for node in group if node.op != "output"] or list(group)
    return max(calls, key=parts.parameter_elements) if calls else max(rest, key=lambda node: parts.readings[node].flops)


def _name(node: fx.Node) -> str:
    if node.op == "output":
        return "output"
    if node.op == "call_module":
        return str(node.target)
    owner = node.meta.get("owner", "")
    function = str(getattr(node.target, "overloadpacket", node.name)).rpartition(".")[2]
    return f"{owner}.{function}" if owner else function


def _crossing(parts: Parts, groups: Groups, where: Mapping[fx.Node, str]) -> dict[tuple[str, str], dict[fx.Node, None]]:
    crossing: dict[tuple[str, str], dict[fx.Node, None]] = {}
    for group in groups:
        for node in group:
            for value in node.all_input_nodes:
                if value in where and where[value] != where[node]:
                    assert value in parts.values.carried
                    crossing.setdefault((where[value], where[node]), {})[value] = None
    return crossing


def _saved_bytes(parts: Parts, groups: Groups) -> dict[str, float]:
    # Each piece of memory counts once: with the operator that made it, else with the first that keeps it.
    names = group_names(parts, groups)
    readings = [[parts.readings[node] for node in _with_free(parts, group)] for group in groups]
    maker: dict[int, str] = {}
    for name, group in zip(names, readings, strict=True):
        for key in (key for reading in group for key in reading.made):
            maker.setdefault(key, name)
    saved = dict.fromkeys(names, 0.0)
    counted: set[int] = set()
    for name, group in zip(names, readings, strict=True):
        for key, count in ((key, count) for reading in group for key, count in reading.saved.items()):
            if key not in counted:
                counted.add(key)
                saved[maker.get(key, name)] += count
    return saved


def _with_free(parts: Parts, group: Sequence[fx.Node]) -> list[fx.Node]:
    return [*sorted(free_needs(list(group), parts.values.free), key=lambda node: node.name), *group]


def _op(
    parts: Parts, name: str, group: Sequence[fx.Node], whole_batch: Collection[str], saved: float, sent: list[fx.Node]
) -> Op:
    nodes = _with_free(parts, group)
    parameters = {parts.parameter_names[id(p)]: p for node in nodes for p in parts.parameters(node)}
    readings = [parts.readings[node] for node in nodes]
    principal = _principal(parts, group)
    kind = type(parts.module.get_submodule(str(principal.target))).__name__ if principal.op == "call_module" else "glue"
    read = {node for node in nodes if node.op == "placeholder"} & {v for n in nodes for v in _read_by_value(n)}
    return Op(
        name=name,
        kind="output" if principal.op == "output" else kind,
        parameters=tuple(sorted(parameters)),
        parameter_bytes=float(sum(p.numel() * p.element_size() for p in parameters.values())),
        output_bytes_per_sample=sum(parts.readings[value].bytes_per_sample for value in sent or _results(group)),
        work=Work(
            flops_per_sample=sum(reading.flops for reading in readings) / SAMPLES[1],
            traffic_bytes_per_sample=sum(reading.traffic_bytes for reading in readings) / SAMPLES[1],
            saved_bytes_per_sample=saved / SAMPLES[1],
            kernels=sum(reading.kernels for reading in readings),
        ),
        model_inputs=tuple(input_name for input_name, node in parts.skeleton.inputs.items() if node in read),
        trainable=not parameters or any(p.requires_grad for p in parameters.values()),
        whole_batch=any(needs_whole_batch(node, whole_batch) for node in group),
    )


def _read_by_value(node: fx.Node) -> Sequence[fx.Node]:
    return () if is_anchor(node) else node.all_input_nodes


def _results(group: Sequence[fx.Node]) -> list[fx.Node]:
    # What the model returns, if this group does.
    return [value for node in group if node.op == "output" for value in node.all_input_nodes]


def shared_parameters(module: nn.Module, ops: Sequence[Op]) -> tuple[Shared, ...]:
    """Return the parameters that several operators hold, sorted by name."""
    counts = Counter(name for op in ops for name in op.parameters)
    parameters = dict(module.named_parameters())
    return tuple(
        Shared(
            name=name,
            bytes=float(parameters[name].numel() * parameters[name].element_size()),
            trainable=parameters[name].requires_grad,
        )
        for name, count in sorted(counts.items())
        if count > 1
    )


def own_tensors(module: nn.Module) -> dict[int, str]:
    """Return the fully qualified names of parameters and buffers by identity; a tied one has its first name."""
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    return {id(tensor): name for name, tensor in reversed(named)}
