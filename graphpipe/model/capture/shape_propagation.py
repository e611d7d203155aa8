"""Runs a module graph on fake tensors, to get the shape of every value and the work of every node."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input, Precision
from graphpipe.model.autocast import DTYPES, autocast_context
from graphpipe.model.capture.call_readings import CallReadings
from graphpipe.model.capture.module_graph.calls.data_flow import GUESS, Decisions, NumberNeeded
from graphpipe.model.capture.module_graph.calls.module_structure import Structures
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.capture.work.meter import Meter
from graphpipe.model.hidden.real_call import call_anyway
from graphpipe.model.inputs import blank
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.model.torch_private import answering, memory_key


def propagate_shapes(
    module_graph: ModuleGraph,
    fake: nn.Module,
    inputs: tuple[Input, ...],
    precision: Precision | None = None,
    attention: AbstractContextManager[object] | None = None,
    entered: Callable[[fx.Node], object] = lambda _: None,
) -> dict[fx.Node, Reading]:
    """Return a reading of every node; must be called in a fake mode.

    Args:
        module_graph: of the module.
        fake: the module on fake tensors, which are on the CPU: autocast chooses dtypes as it does there.
        inputs: of the model.
        precision: of the forwards.
        attention: in which attention is computed; None as on the CPU.
        entered: called with each node before it runs, also before it runs again.

    Raises:
        Exception: any error of a submodule on fake tensors.
    """
    structures = Structures(fake)
    with attention or nullcontext():
        few, many = (
            _decided_run(module_graph, fake, blank(inputs, samples), structures, precision, entered)
            for samples in SAMPLES
        )
    for node, reading in many.items():
        if not all(map(_is_known, (*(few[node].shape or ()), *(reading.shape or ())))):
            reading.grows = True
            continue
        one, other = few[node].shape, reading.shape
        reading.shapes = (one, other) if one is not None and other is not None else None
        reading.sample_shape = _sample_shape(few[node].shape, reading.shape)
        sizes = list(zip(few[node].shape or (), reading.shape or (), strict=False))
        reading.compares = sizes.count(SAMPLES) > 1
        reading.rows = _rows(few[node].shape, reading.shape)
        varying = [at for at, (one, other) in enumerate(sizes) if one != other]
        reading.grows = bool(varying)
        reading.samples_at = varying[0] if len(varying) == 1 and sizes[varying[0]] == SAMPLES else None
    return many


def _is_known(size: object) -> bool:
    # A number of rows that depends on values is torch's SymInt.
    return isinstance(size, int)


def _sample_shape(few: tuple[int, ...] | None, many: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if not few or not many or (few[0], many[0]) != SAMPLES or few[1:] != many[1:]:
        return None
    return many[1:]


def _rows(few: tuple[int, ...] | None, many: tuple[int, ...] | None) -> int:
    if not few or not many or few[1:] != many[1:]:
        return 0
    rows, rest = divmod(few[0], SAMPLES[0])
    return rows if not rest and many[0] == rows * SAMPLES[1] else 0


def _decided_run(
    module_graph: ModuleGraph,
    fake: nn.Module,
    inputs: Mapping[str, Tensor],
    structures: Structures,
    precision: Precision | None,
    entered: Callable[[fx.Node], object],
) -> dict[fx.Node, Reading]:
    # Truth values in tensors that glue hands to calls count as true, or as false if calls then raise an error.
    decisions = Decisions(answer=True)
    try:
        return _run(module_graph, fake, inputs, structures, decisions, precision, entered)
    except Exception:
        if not decisions.count:
            raise
        return _run(module_graph, fake, inputs, structures, Decisions(answer=False), precision, entered)


def _run(
    module_graph: ModuleGraph,
    fake: nn.Module,
    inputs: Mapping[str, Tensor],
    structures: Structures,
    decided: Decisions,
    precision: Precision | None,
    entered: Callable[[fx.Node], object],
) -> dict[fx.Node, Reading]:
    names = {node: name for name, node in module_graph.inputs.items()}
    values: dict[fx.Node, Any] = {}
    readings: dict[fx.Node, Reading] = {}
    state = {memory_key(tensor) for tensor in [*fake.parameters(), *fake.buffers()]}
    given = {memory_key(tensor) for tensor in inputs.values()}
    alive: list[Tensor] = []  # a memory key is unique only while its tensor is alive
    derived = set[int]()
    autocasts = precision in DTYPES
    calls = CallReadings(module=fake, outside=state | given, structures=structures)

    def run_with(node: fx.Node, decisions: Decisions) -> tuple[Any, Reading]:
        meter = Meter(state, given, derived, alive, decisions, autocasts=autocasts)
        if node in names:
            return inputs[names[node]], meter.reading(inputs[names[node]])
        try:
            with handle_saved_tensors(meter):
                value = metered(node, meter)
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            # Transforms of torch.func do not show what they save. All that they make counts.
            meter = Meter(state, given, derived, alive, decisions, autocasts=autocasts, saves_all=True)
            value = metered(node, meter)
        return value, meter.reading(value)

    def metered(node: fx.Node, meter: Meter) -> Any:
        entered(node)
        with meter, meter.recurrences, answering(meter.decisions.decide):
            return evaluate(node, values, fake, module_graph, partial(_again, meter))

    def run(node: fx.Node) -> tuple[Any, Reading]:
        if node.op != "call_module":
            return run_with(node, decided)
        try:
            return _costliest(partial(run_with, node), None)
        except NumberNeeded:
            return _costliest(partial(run_with, node), GUESS)

    # Autocast keeps its copies of weights until the context ends, so each run has its own.
    with torch.enable_grad(), autocast_context(precision, "cpu"):
        for node in module_graph.graph.nodes:
            if node.op == "call_module":
                arguments = map_arg((node.args, node.kwargs), lambda other: values[other])
                values[node], readings[node] = calls.read(node, arguments, partial(run, node))
            else:
                values[node], readings[node] = run(node)
            _check_derivative(node, values[node])
    return readings


def _costliest(run: Callable[[Decisions], tuple[Any, Reading]], number: int | None) -> tuple[Any, Reading]:
    # A call that branches on values costs what its costlier branch does: experts may skip their work if they have no
    # rows. A branch that raises an error ends the training.
    found: list[tuple[Any, Reading]] = []
    for answer in (True, False):
        decisions = Decisions(answer=answer, number=number)
        try:
            found.append(run(decisions))
        except Exception as error:
            if not decisions.count or not (answer or found):
                if decisions.asked:
                    raise NumberNeeded from error
                raise
        if not decisions.count:
            break
    return max(found, key=lambda each: each[1].flops)


def _check_derivative(node: fx.Node, value: object) -> None:
    if isinstance(value, Tensor) and type(value.grad_fn).__name__ == "NotImplemented":
        remedy = "Keep the submodule around it whole (opaque=[...])."
        raise InvalidInput(f"operator {node.target} in a forward has no derivative", where="capture", remedy=remedy)


def _again(meter: "Meter") -> "Meter":
    return meter


def evaluate(
    node: fx.Node,
    values: Mapping[fx.Node, Any],
    fake: nn.Module,
    module_graph: ModuleGraph,
    counting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """Return the value of a node that is not a model input, given the values of the nodes before it."""
    args = map_arg(node.args, lambda other: values[other])
    kwargs = map_arg(node.kwargs, lambda other: values[other])
    match node.op:
        case "get_attr":
            constant = module_graph.constants.get(str(node.target))
            return attribute(fake, node.target) if constant is None else constant
        case "call_module":
            own = _changeable(args), _changeable(kwargs)
            return call_anyway(fake.get_submodule(str(node.target)), *own, counting)
        case "call_function":
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        case "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        case _:
            return args


def _changeable(value: Any) -> Any:
    # The lists and dicts of a graph refuse changes. A submodule may write its result into the dict that it is given.
    match value:
        case dict():
            return {key: _changeable(each) for key, each in value.items()}
        case list():
            return [_changeable(each) for each in value]
        case tuple() if type(value) is tuple:
            return tuple(_changeable(each) for each in value)
        case _:
            return value


def attribute(module: nn.Module, target: Any) -> Any:
    """Return the parameter, buffer or tensor of a fully qualified name."""
    prefix, _, name = str(target).rpartition(".")
    return getattr(module.get_submodule(prefix), name)
