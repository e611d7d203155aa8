"""From a module to a graph of operators, without computing anything."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

from torch import fx, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph, Input, Origin, Precision
from graphpipe.model.autocast import check_precision
from graphpipe.model.capture.batch_statistics import warn_of_statistics, with_statistics
from graphpipe.model.capture.build_ops import (
    MeasuredModel,
    build_ops,
    group_names,
    needs_whole_batch,
    shared_parameters,
    tensor_names,
)
from graphpipe.model.capture.changed_weights import check_changes
from graphpipe.model.capture.crossing_values import CrossingValues, crossing_values
from graphpipe.model.capture.fuse_tiny import fuse_tiny
from graphpipe.model.capture.fused_attention import FusedAttention, is_fused
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.join_uncuttable import join_output, join_uncuttable, stateful
from graphpipe.model.capture.module_graph.failures import CannotExpress, ExportFailed, cannot_trace
from graphpipe.model.capture.module_graph.make_module_graph import make_module_graph
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.module_graph.opaque_modules import EVERY
from graphpipe.model.capture.op_splits.input_splits import find_input_splits
from graphpipe.model.capture.op_splits.output_splits import find_output_splits
from graphpipe.model.capture.op_splits.row_splits import find_row_splits
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.capture.samples_in_front import put_samples_in_front
from graphpipe.model.capture.shape_propagation import propagate_shapes
from graphpipe.model.dag_module import DagModule, model_name
from graphpipe.model.function_caches import without_caches
from graphpipe.model.hidden.compiled_modules import check_compiled_modules, eagerly
from graphpipe.model.hidden.library_draws import library_draws_fixed
from graphpipe.model.inputs import Inputs, describe, name_inputs, read_layout
from graphpipe.model.inputs.input_forms import Form, check_forms
from graphpipe.model.key_value_cache import without_cache
from graphpipe.model.quiet import quiet_export
from graphpipe.model.torch_private import fake_mode
from graphpipe.model.unregistered_layers import warn_of_unregistered_layers
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.recursion_limit import deep_enough
from graphpipe.user_frames import warn_user

Method = Literal["auto", "export", "declared"]
_AUTO = Origin(method="auto")


@dataclass(frozen=True, slots=True)
class Traced:
    """A module's graph, and the copy on fake tensors that was traced."""

    mode: AbstractContextManager[object]
    """Of the fake tensors."""
    fake: nn.Module
    module_graph: ModuleGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A graph, and the nodes behind its operators."""

    graph: Graph
    module_graph: ModuleGraph
    values: CrossingValues
    readings: Mapping[fx.Node, Reading]
    nodes: Mapping[str, tuple[fx.Node, ...]]
    """Nodes of each operator, in order of execution, without duplicated nodes."""

    @property
    def precision(self) -> Precision:
        """Of the forwards that it was captured for."""
        return (self.graph.origin and self.graph.origin.precision) or "fp32"


def capture(
    module: nn.Module | ModelBuilder,
    example_inputs: Inputs,
    *,
    whole_batch: Sequence[str] = (),
    split: Sequence[str] = (),
    opaque: Sequence[str] = (),
    method: Method = "auto",
    arguments: Mapping[str, bool | int | float | str] | None = None,
    outputs: Sequence[str] = (),
    precision: Precision = "fp32",
    forms: Mapping[str, Form] | None = None,
    fused_attention: bool | None = None,
) -> Graph:
    """Return the operator graph of a module: calls of its submodules, joined by the glue in between.

    Nothing is computed and the module does not change: a copy without data runs instead, in training mode. Only the
    shapes and dtypes of `example_inputs` matter. The same module always gives an equal graph.

    Args:
        module: any module that torch.export can trace with a variable number of samples, or a DagModule. It may be on
            the meta device, and it may be a function that builds the module, whose parameters then have no data.
        example_inputs: a tensor, a sequence of tensors, or tensors by name; their first dimension is samples. In place
            of a tensor there may be a dict, list, tuple or dataclass of them, a number, a text or None. What is not a
            tensor never changes.
        whole_batch: submodules or operators that need the whole mini-batch at once (contrastive losses).
        split: submodules to look into, although they are whole by default (see `opaque_modules`). `*` looks into all
            that can be followed, and keeps every operator apart that saves something for the backward.
        opaque: submodules to keep whole, although they are split by default.
        method: `export` traces with torch.export; `declared` makes one operator per submodule of a DagModule;
            `auto` tries the first, then the second.
        arguments: keyword arguments of the forward that are not tensors and never change. A key-value cache of a model
            of `transformers` is switched off by default.
        outputs: for a forward that returns a dict (or a dataclass of Hugging Face), the entries to return as a dict.
            What only the other entries need is never computed. By default the whole output is returned.
        precision: of the forwards in training. With `bf16` or `fp16`, the graph counts what autocast saves and sends.
        forms: of inputs that the forward does not take with samples in front (see `input_forms`). The example and
            every mini-batch have samples in front.
        fused_attention: count attention with dropout as the one kernel that GPUs run. None: if this process can use a
            GPU, or the model is on one or on the meta device.

    Raises:
        InvalidInput: unusable inputs, an unknown submodule or output, or a forward that cannot be traced (and why).
    """
    check_precision(precision)
    module = without_data(module)
    origin = Origin(
        method=method,
        split=tuple(split),
        opaque=tuple(opaque),
        whole_batch=tuple(whole_batch),
        arguments=tuple((arguments or {}).items()),
        outputs=tuple(outputs),
        precision=precision,
        forms=tuple((forms or {}).items()),
        fused_attention=is_fused(module) if fused_attention is None else fused_attention,
    )
    return capture_nodes(module, example_inputs, origin).graph


def capture_nodes(module: nn.Module, example_inputs: Inputs, origin: Origin = _AUTO) -> Captured:
    """Return the graph of a module with the nodes behind its operators.

    Args:
        module: as for `capture`.
        example_inputs: as for `capture`.
        origin: the options of `capture`. A key-value cache is switched off, unless its arguments say otherwise.

    Raises:
        InvalidInput: as `capture`.
    """
    origin = replace(origin, arguments=tuple({**without_cache(module), **dict(origin.arguments)}.items()))
    layout = read_layout(module, example_inputs)
    named = name_inputs(layout, example_inputs)
    origin = replace(origin, parts=layout.parts)
    check_forms(dict(origin.forms), [*named])
    warn_of_unregistered_layers(module)
    check_compiled_modules(module)
    return capture_again(module, describe(named), origin)


def tied(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the operators that share a parameter, by its name: tied weights, and submodules called twice."""
    holders: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.parameters:
            holders.setdefault(name, []).append(op.name)
    return {name: tuple(ops) for name, ops in holders.items() if len(ops) > 1}


def capture_again(
    module: nn.Module, inputs: tuple[Input, ...], origin: Origin, *, compare_modes: bool = True
) -> Captured:
    """Return the capture that a graph was made from, given the inputs and origin in that graph.

    Args:
        module: the model.
        inputs: of its graph.
        origin: of its graph.
        compare_modes: also trace the model in evaluation mode, to see whether its glue is the same there. This doubles
            the time, and is not needed if the graph was captured with it, unless its origin says that the modes differ.

    Raises:
        InvalidInput: as `capture`.
    """
    deepest = max(path.count(".") for path, _ in module.named_modules())
    with deep_enough(deepest + 1), library_draws_fixed(), eagerly(module):
        return _captured_anyhow(module, inputs, origin, compare_modes)


def _captured_anyhow(module: nn.Module, inputs: tuple[Input, ...], origin: Origin, compare_modes: bool) -> Captured:
    if origin.method == "declared" or (origin.method == "auto" and not isinstance(module, DagModule)):
        method: Method = "declared" if origin.method == "declared" else "export"
        return _capture_by(method, module, inputs, origin, compare_modes)
    try:
        return _capture_by("export", module, inputs, origin, compare_modes)
    except InvalidInput as error:
        if origin.method == "export" or not isinstance(error.__cause__, (CannotExpress, ExportFailed)):
            raise
        declared = _capture_by("declared", module, inputs, origin, compare_modes)
        reason = f"{model_name(module)} is captured as declared, one operator per submodule: {error.what}"
        warn_user(reason)
        return declared


def _capture_by(
    method: Method, module: nn.Module, inputs: tuple[Input, ...], origin: Origin, compare_modes: bool
) -> Captured:
    traced, origin = trace(module, inputs, replace(origin, method=method), compare_modes=compare_modes)
    captured = capture_measured(module, inputs, origin, measure(traced, inputs, origin))
    warn_of_statistics(captured.graph.ops)
    return captured


def trace(
    module: nn.Module, inputs: tuple[Input, ...], origin: Origin, *, compare_modes: bool
) -> tuple[Traced, Origin]:
    """Return the graph of a module, and the origin with every submodule that had to be opaque.

    Args:
        module: the model.
        inputs: of the graph.
        origin: how to trace it: its method is `export` or `declared`.
        compare_modes: as in `capture_again`.

    Raises:
        InvalidInput: as `capture`.
    """
    mode = fake_mode()
    with without_caches(module):
        fake, module_graph, origin = make_module_graph(
            origin.method, module, inputs, origin, mode, samples=SAMPLES[0], compare_modes=compare_modes
        )
    return Traced(mode, fake, module_graph), origin


def measure(traced: Traced, inputs: tuple[Input, ...], origin: Origin) -> MeasuredModel:
    """Return a traced module with the shapes and the work of its nodes.

    Args:
        traced: the module's graph.
        inputs: of that graph.
        origin: says in which precision forwards run, and how attention is computed.

    Raises:
        InvalidInput: a forward cannot run on fake tensors.
    """
    graph, attention = traced.module_graph.graph, FusedAttention() if origin.fused_attention else None
    with traced.mode, quiet_export(), without_caches(traced.fake):
        readings = _readings(traced, inputs, origin.precision, attention)
        values = crossing_values(graph, readings)
        if put_samples_in_front(graph, join_uncuttable(graph, values, stateful(traced.fake)), values, readings):
            readings = _readings(traced, inputs, origin.precision, attention)
            values = crossing_values(graph, readings)
    return MeasuredModel(
        module_graph=traced.module_graph,
        values=values,
        readings=readings,
        module=traced.fake,
        parameter_names=tensor_names(traced.fake),
        fused_attention=attention is not None and attention.changes,
    )


def capture_measured(module: nn.Module, inputs: tuple[Input, ...], origin: Origin, measured: MeasuredModel) -> Captured:
    """Return the capture of a module that has been traced and measured.

    Args:
        module: the model.
        inputs: of the traced graph.
        origin: how it was traced, and what needs the whole mini-batch. Other operators may need it the next time.
        measured: the module's graph.

    Raises:
        InvalidInput: `whole_batch` names something that is neither a submodule nor an operator.
    """
    origin = replace(origin, fused_attention=measured.fused_attention)  # Models without dropout are the same anywhere.
    whole_batch = tuple(dict.fromkeys([*_declared_whole_batch(module), *origin.whole_batch]))
    submodules = {name for name in whole_batch if name in dict(measured.module.named_modules())}
    groups = join_uncuttable(measured.module_graph.graph, measured.values, stateful(measured.module))
    if origin.method == "export":
        groups = fuse_tiny(
            groups,
            measured.readings,
            measured.parameter_elements,
            lambda node: needs_whole_batch(node, submodules),
            measured.values.read_by,
            saving=EVERY not in origin.split,
        )
    return _captured(module, inputs, origin, measured, join_output(groups), whole_batch)


def _declared_whole_batch(module: nn.Module) -> list[str]:
    dags = {path: part for path, part in module.named_modules() if isinstance(part, DagModule)}
    return [f"{path}.{name}" if path else name for path, dag in dags.items() for name in dag.whole_batch]


def _captured(
    module: nn.Module,
    inputs: tuple[Input, ...],
    origin: Origin,
    measured: MeasuredModel,
    groups: Groups,
    whole_batch: Sequence[str],
) -> Captured:
    ops, edges = build_ops(measured, groups, whole_batch, origin.precision or "fp32")
    known = [op.name for op in ops]
    for name in whole_batch:
        if name not in known and name not in dict(module.named_modules()):
            what = f"'{name}' is not a submodule or operator"
            raise InvalidInput(what, where="whole_batch", remedy=nearest(name, known))
    ops = tuple(replace(op, whole_batch=op.whole_batch or op.name in whole_batch) for op in ops)
    splits = [find(measured, groups, ops) for find in (find_input_splits, find_output_splits, find_row_splits)]
    listed = {edge.source for edge in edges if edge.values}
    ops = tuple(
        replace(op, splits=tuple(found[op.name].naming(listed) for found in splits if op.name in found)) for op in ops
    )
    shared = shared_parameters(module, ops)
    nodes = dict(zip(group_names(measured, groups), groups, strict=True))
    check_changes(ops, nodes)
    ops = with_statistics(ops, nodes, measured.readings)
    return Captured(
        graph=Graph(name=model_name(module), ops=ops, edges=edges, inputs=inputs, origin=origin, shared=shared),
        module_graph=measured.module_graph,
        values=measured.values,
        readings=measured.readings,
        nodes=nodes,
    )


def _readings(
    traced: Traced, inputs: tuple[Input, ...], precision: Precision | None, attention: FusedAttention | None
) -> Mapping[fx.Node, Reading]:
    try:
        return propagate_shapes(traced.module_graph, traced.fake, inputs, precision, attention)
    except InvalidInput:
        raise
    except Exception as error:
        raise cannot_trace(traced.fake, error) from error
