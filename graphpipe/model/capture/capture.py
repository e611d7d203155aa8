"""From a module to a graph, without computing anything."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

from torch import fx, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph, Input, Origin
from graphpipe.model.capture.build_ops import (
    Parts,
    build_ops,
    group_names,
    needs_whole_batch,
    own_tensors,
    shared_parameters,
)
from graphpipe.model.capture.crossing_values import Values, classify
from graphpipe.model.capture.groups import Groups, fuse_tiny, join_output, join_uncuttable
from graphpipe.model.capture.module_graph.exported_graph import quiet
from graphpipe.model.capture.module_graph.make_module_graph import (
    ExportFailed,
    cannot_trace,
    trace_declared,
    trace_exported,
)
from graphpipe.model.capture.module_graph.module_graph import CannotFollow, Skeleton, fake_twin
from graphpipe.model.capture.shape_propagation import SAMPLES, Reading, measure
from graphpipe.model.dag_module import DagModule, model_name
from graphpipe.model.inputs import Inputs, blank, describe, input_names, name_inputs
from graphpipe.model.torch_private import fake_mode
from graphpipe.model.unregistered_layers import warn_of_hidden

Method = Literal["auto", "export", "declared"]
_AUTO = Origin(method="auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A graph, and the nodes that stand behind its operators."""

    graph: Graph
    skeleton: Skeleton
    values: Values
    readings: Mapping[fx.Node, Reading]
    nodes: Mapping[str, tuple[fx.Node, ...]]
    """Nodes of each operator, in order of execution; free nodes apart."""


def capture(
    module: nn.Module,
    example_inputs: Inputs,
    *,
    whole_batch: Sequence[str] = (),
    split: Sequence[str] = (),
    opaque: Sequence[str] = (),
    method: Method = "auto",
    arguments: Mapping[str, bool | int | float | str] | None = None,
    outputs: Sequence[str] = (),
) -> Graph:
    """Return the operator graph of a module: calls of its submodules, joined by the glue in between.

    Nothing is computed and the module is left as it is: a copy without data runs in its place, in training mode.
    Only the shapes and dtypes of `example_inputs` matter. The same module gives an equal graph every time.

    Args:
        module: any module torch.export can trace with a variable number of samples, or a DagModule.
        example_inputs: a tensor, a sequence of tensors, or tensors by name; first dimension samples.
        whole_batch: submodules or operators that need the whole mini-batch at once (contrastive losses).
        split: submodules to look into against the default granularity (see `granularity.whole_paths`).
        opaque: submodules to keep whole against the default granularity.
        method: `export` traces with torch.export; `declared` makes one operator per submodule of a DagModule;
            `auto` tries the first, then the second.
        arguments: what the forward takes by name besides tensors, the same in every step: `{"use_cache": False}`.
        outputs: of a forward that returns a dict (or a dataclass of Hugging Face) the entries to return, as a dict;
            what only the others need is never computed. Without, all that it returns, as it returns it.

    Raises:
        InvalidInput: unusable inputs, an unknown submodule or output, or a forward that cannot be traced (and why).
    """
    origin = Origin(
        method=method,
        split=tuple(split),
        opaque=tuple(opaque),
        whole_batch=tuple(whole_batch),
        arguments=tuple((arguments or {}).items()),
        outputs=tuple(outputs),
    )
    return follow(module, example_inputs, origin).graph


def follow(module: nn.Module, example_inputs: Inputs, origin: Origin = _AUTO) -> Captured:
    """Return what `capture` makes a graph from.

    Args:
        module: as for `capture`.
        example_inputs: as for `capture`.
        origin: how.

    Raises:
        InvalidInput: as `capture`.
    """
    named = name_inputs(input_names(module, example_inputs), example_inputs)
    warn_of_hidden(module)
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
    """Return what `capture` made a graph from, with the inputs and origin that the graph remembers.

    Args:
        module: the model.
        inputs: of its graph.
        origin: of its graph.
        compare_modes: trace the model in evaluation too, to see that its glue is the same there. It takes as long as
            the rest, and is needless for a graph that has been captured with it.

    Raises:
        InvalidInput: as `capture`.
    """
    if origin.method == "declared" or (origin.method == "auto" and not isinstance(module, DagModule)):
        method = "declared" if origin.method == "declared" else "export"
        return _capture_by(method, module, inputs, origin, compare_modes)
    try:
        return _capture_by("export", module, inputs, origin, compare_modes)
    except InvalidInput as error:
        if origin.method == "export" or not isinstance(error.__cause__, (CannotFollow, ExportFailed)):
            raise
        declared = _capture_by("declared", module, inputs, origin, compare_modes)
        reason = f"{model_name(module)} is captured as declared, one operator per submodule: {error.what}"
        warnings.warn(reason, stacklevel=3)
        return declared


def _capture_by(
    method: str, module: nn.Module, inputs: tuple[Input, ...], origin: Origin, compare_modes: bool
) -> Captured:
    whole_batch = tuple(dict.fromkeys([*_declared_whole_batch(module), *origin.whole_batch]))
    mode = fake_mode()
    twin, skeleton, origin = trace(method, module, inputs, origin, mode, compare_modes=compare_modes)
    with mode, quiet():
        readings = _measured(skeleton, twin, inputs)
    values = classify(skeleton.graph, readings)
    parts = Parts(skeleton=skeleton, values=values, readings=readings, module=twin, parameter_names=own_tensors(twin))
    flagged = {name for name in whole_batch if name in dict(twin.named_modules())}
    groups = join_uncuttable(skeleton.graph, values)
    if method == "export":
        groups = fuse_tiny(groups, readings, parts.parameter_elements, lambda node: needs_whole_batch(node, flagged))
    return _captured(module, inputs, replace(origin, method=method), parts, join_output(groups), whole_batch)


def trace(
    method: str,
    module: nn.Module,
    inputs: tuple[Input, ...],
    origin: Origin,
    mode: AbstractContextManager[object],
    *,
    compare_modes: bool = True,
) -> tuple[nn.Module, Skeleton, Origin]:
    """Return a copy of a module without data, its skeleton, and the origin with all that was kept whole.

    Raises:
        InvalidInput: as `capture`.
    """
    twin = fake_twin(module, mode)
    with mode:
        examples = blank(inputs, SAMPLES[0])
    # torch.export runs outside the mode, so that tensors written in a forward keep their data.
    if method == "export":
        return twin, *trace_exported(twin, examples, origin, compare_modes=compare_modes)
    if origin.arguments or origin.outputs:
        remedy = "Its submodules take what they are fed, and its own `output` says what it returns."
        raise InvalidInput("a declared graph has no further arguments and outputs", where="capture", remedy=remedy)
    return twin, trace_declared(twin, examples), origin


def _declared_whole_batch(module: nn.Module) -> list[str]:
    dags = {path: part for path, part in module.named_modules() if isinstance(part, DagModule)}
    return [f"{path}.{name}" if path else name for path, dag in dags.items() for name in dag.whole_batch]


def _captured(
    module: nn.Module,
    inputs: tuple[Input, ...],
    origin: Origin,
    parts: Parts,
    groups: Groups,
    whole_batch: Sequence[str],
) -> Captured:
    ops, edges = build_ops(parts, groups, whole_batch)
    known = [op.name for op in ops]
    for name in whole_batch:
        if name not in known and name not in dict(module.named_modules()):
            raise InvalidInput(
                f"'{name}' is no submodule and no operator", where="whole_batch", remedy=nearest(name, known)
            )
    ops = tuple(replace(op, whole_batch=op.whole_batch or op.name in whole_batch) for op in ops)
    shared = shared_parameters(module, ops)
    graph = Graph(name=model_name(module), ops=ops, edges=edges, inputs=inputs, origin=origin, shared=shared)
    nodes = dict(zip(group_names(parts, groups), groups, strict=True))
    return Captured(graph=graph, skeleton=parts.skeleton, values=parts.values, readings=parts.readings, nodes=nodes)


def _measured(skeleton: Skeleton, twin: nn.Module, inputs: tuple[Input, ...]) -> Mapping[fx.Node, Reading]:
    try:
        return measure(skeleton, twin, inputs)
    except InvalidInput:
        raise
    except Exception as error:
        raise cannot_trace(twin, error) from error
