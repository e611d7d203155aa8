"""Operators and edges of a captured graph, from groups of nodes."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx, nn

from graphpipe.graph import Edge, EdgeValue, Op, Precision, ProductPrecision, Shared, Work
from graphpipe.model.capture.crossing_values import CrossingValues, duplicated_inputs, is_anchor
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.capture.shape_propagation import attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """A module graph, with what its nodes compute on fake tensors."""

    module_graph: ModuleGraph
    values: CrossingValues
    readings: Mapping[fx.Node, Reading]
    module: nn.Module
    """The model, or a fake copy."""
    parameter_names: Mapping[int, str]
    """Fully qualified names by identity of the parameter; a tied parameter has its first name."""
    fused_attention: bool
    """Whether attention with dropout was counted as one kernel."""

    def parameters(self, node: fx.Node) -> list[nn.Parameter]:
        """Return the parameters that a node itself reads."""
        if node.op == "call_module":
            return list(self.module.get_submodule(str(node.target)).parameters())
        if node.op == "get_attr" and node.target not in self.module_graph.constants:
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


def build_ops(
    model: MeasuredModel, groups: Groups, whole_batch: Collection[str], precision: Precision
) -> tuple[tuple[Op, ...], tuple[Edge, ...]]:
    """Return one operator per group, and the edges between them. The forwards were run in a precision."""
    names = group_names(model, groups)
    where = {node: name for name, group in zip(names, groups, strict=True) for node in group}
    crossing = _crossing(model, groups, where)
    sent = {value: None for values in crossing.values() for value in values}
    saved = _saved_bytes(model, groups, lambda reading: reading.saved)
    of_state = _saved_bytes(model, groups, lambda reading: reading.saved_of_state)
    several = {name for name, count in Counter(where[value] for value in sent).items() if count > 1}
    ops: list[Op] = []
    for name, group in zip(names, groups, strict=True):
        own = [value for value in sent if where[value] == name]
        op = _op(model, name, group, whole_batch, (saved[name], of_state[name]), own, precision)
        ops.append(replace(op, without_gradient=_without_gradient(model, group, own, listed=name in several)))
    edges = [
        _edge(model, source, target, values, listed=source in several) for (source, target), values in crossing.items()
    ]
    return tuple(ops), tuple(edges)


def _without_gradient(
    model: MeasuredModel, group: Sequence[fx.Node], sent: Sequence[fx.Node], *, listed: bool
) -> tuple[str, ...]:
    # Nothing of a frozen branch needs a gradient, which the graph knows without this.
    nodes = {each for node in _with_duplicated(model, group) for each in (node, *node.all_input_nodes)}
    trains = any(model.readings[node].requires_grad for node in nodes) or any(
        each.requires_grad for node in nodes for each in model.parameters(node)
    )
    constant = [value.name for value in sent if trains and not model.readings[value].requires_grad]
    return tuple(name if listed else "" for name in constant)


def _edge(model: MeasuredModel, source: str, target: str, values: Iterable[fx.Node], *, listed: bool) -> Edge:
    counts = {value.name: model.readings[value].bytes_per_sample for value in values}
    named = [EdgeValue(name=name, bytes_per_sample=count) for name, count in counts.items()]
    return Edge(
        source=source, target=target, bytes_per_sample=sum(counts.values()), values=tuple(named if listed else ())
    )


def group_names(model: MeasuredModel, groups: Groups) -> tuple[str, ...]:
    """Return the operators' names, in order of the groups: a submodule's path, with `#2` and so on if it repeats."""
    counts: Counter[str] = Counter()
    names: list[str] = []
    for group in groups:
        name = _name(_principal(model, group))
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return tuple(names)


def _principal(model: MeasuredModel, group: Sequence[fx.Node]) -> fx.Node:
    # The node that names an operator: the call with the most parameters, or else the glue with the most FLOPs. Glue
    # without FLOPs before the output is named like the output.
    calls = [node for node in group if node.op == "call_module"]
    if calls:
        return max(calls, key=model.parameter_elements)
    found = max(group, key=lambda node: model.readings[node].flops)
    return found if model.readings[found].flops or group[-1].op != "output" else group[-1]


def _name(node: fx.Node) -> str:
    if node.op == "output":
        return "output"
    if node.op == "call_module":
        return str(node.target)
    owner = node.meta.get("owner", "")
    function = str(getattr(node.target, "overloadpacket", node.name)).rpartition(".")[2]
    return f"{owner}.{function}" if owner else function


def _crossing(
    model: MeasuredModel, groups: Groups, where: Mapping[fx.Node, str]
) -> dict[tuple[str, str], dict[fx.Node, None]]:
    # The values (in order, without repeats) that each operator sends to each other one.
    crossing: dict[tuple[str, str], dict[fx.Node, None]] = {}
    for group in groups:
        for node in group:
            for value in model.values.read_by(node):
                if value in where and where[value] != where[node]:
                    assert value in model.values.crossing
                    crossing.setdefault((where[value], where[node]), {})[value] = None
    return crossing


def _saved_bytes(
    model: MeasuredModel, groups: Groups, saved_by: Callable[[Reading], Mapping[int, float]]
) -> dict[str, float]:
    # Each piece of memory counts once: for the operator that made it, or else for the first operator that saves it.
    names = group_names(model, groups)
    readings = [[model.readings[node] for node in _with_duplicated(model, group)] for group in groups]
    makers: dict[int, str] = {}
    for name, group in zip(names, readings, strict=True):
        for key in (key for reading in group for key in reading.made):
            makers.setdefault(key, name)
    saved = dict.fromkeys(names, 0.0)
    counted: set[int] = set()
    for name, group in zip(names, readings, strict=True):
        for key, count in ((key, count) for reading in group for key, count in saved_by(reading).items()):
            if key not in counted:
                counted.add(key)
                saved[makers.get(key, name)] += count
    return saved


def _with_duplicated(model: MeasuredModel, group: Sequence[fx.Node]) -> list[fx.Node]:
    return [*sorted(duplicated_inputs(list(group), model.values.duplicated), key=lambda node: node.name), *group]


def _op(
    model: MeasuredModel,
    name: str,
    group: Sequence[fx.Node],
    whole_batch: Collection[str],
    saved: tuple[float, float],
    sent: list[fx.Node],
    precision: Precision,
) -> Op:
    nodes = _with_duplicated(model, group)
    parameters = {model.parameter_names[id(p)]: p for node in nodes for p in model.parameters(node)}
    readings = [model.readings[node] for node in nodes]
    flops = sum(reading.flops for reading in readings)
    principal = _principal(model, group)
    kind = type(model.module.get_submodule(str(principal.target))).__name__ if principal.op == "call_module" else "glue"
    read = {value for node in nodes for value in _inputs_by_value(node) if value.op == "placeholder"}
    return Op(
        name=name,
        kind="output" if principal.op == "output" else kind,
        parameters=tuple(sorted(parameters)),
        parameter_bytes=float(sum(p.numel() * p.element_size() for p in parameters.values())),
        output_bytes_per_sample=sum(model.readings[value].bytes_per_sample for value in sent or _results(group)),
        work=Work(
            flops_per_sample=flops / SAMPLES[1],
            traffic_bytes_per_sample=sum(reading.traffic_bytes for reading in readings) / SAMPLES[1],
            saved_bytes_per_sample=saved[0] / SAMPLES[1],
            saved_bytes_per_forward=saved[1],
            kernels=sum(reading.kernels for reading in readings),
            step_kernels=sum(reading.step_kernels for reading in readings),
            without_formula=tuple(sorted({name for reading in readings for name in reading.without_formula})),
            products=_products(readings, flops, precision),
            traffic_bytes_per_forward=sum(reading.state_traffic_bytes for reading in readings),
        ),
        model_inputs=tuple(input_name for input_name, node in model.module_graph.inputs.items() if node in read),
        trainable=not parameters or any(p.requires_grad for p in parameters.values()),
        whole_batch=any(needs_whole_batch(node, whole_batch) for node in group),
    )


def _products(readings: Sequence[Reading], flops: float, usual: Precision) -> ProductPrecision | None:
    """Return the precision of most of the FLOPs, if it is not the usual one."""
    narrow: tuple[ProductPrecision, ...] = ("bf16", "fp16", "fp8")
    counts = {kind: sum(reading.products.get(kind, 0.0) for reading in readings) for kind in narrow}
    wide = flops - sum(counts.values())
    most = max(narrow, key=counts.__getitem__)
    found: ProductPrecision = most if counts[most] > wide else "fp32"
    return found if flops and found != usual else None


def _inputs_by_value(node: fx.Node) -> Sequence[fx.Node]:
    return () if is_anchor(node) else node.all_input_nodes


def _results(group: Sequence[fx.Node]) -> list[fx.Node]:
    # The values that the model returns, if this group returns them.
    return [value for node in group if node.op == "output" for value in node.all_input_nodes]


def shared_parameters(module: nn.Module, ops: Sequence[Op]) -> tuple[Shared, ...]:
    """Return the parameters that several operators read, sorted by name."""
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


def tensor_names(module: nn.Module) -> dict[int, str]:
    """Return the fully qualified names of parameters and buffers, by identity; a tied one has its first name."""
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    return {id(tensor): name for name, tensor in reversed(named)}
