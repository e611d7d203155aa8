"""The graph of a module, by torch.export or from the declaration of a DagModule."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input, Origin
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.capture.module_graph.declared_graph import declared_graph
from graphpipe.model.capture.module_graph.exported_graph import exported_graph
from graphpipe.model.capture.module_graph.failures import (
    CannotExpress,
    ExportFailed,
    asking_submodule,
    cannot_express,
    cannot_trace,
)
from graphpipe.model.capture.module_graph.input_forms import taking
from graphpipe.model.capture.module_graph.mode_reads import follow_modes, observed_modes
from graphpipe.model.capture.module_graph.module_graph import TRAINING, ModuleGraph
from graphpipe.model.capture.module_graph.opaque_modules import EVERY, opaque_modules
from graphpipe.model.dag_module import DagModule
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.inputs import blank
from graphpipe.model.quiet import quiet_export
from graphpipe.model.recorded_parts import recorded_parts
from graphpipe.model.sample_rows import SampleLoops, without_lists
from graphpipe.model.torch_private import fake_mode

_DIFFERS = "behaves differently in training and in evaluation, or for another number of samples"


def make_module_graph(
    method: str,
    module: nn.Module,
    inputs: tuple[Input, ...],
    origin: Origin,
    mode: AbstractContextManager[object],
    *,
    samples: int,
    compare_modes: bool = True,
    for_loss: bool = False,
) -> tuple[nn.Module, ModuleGraph, Origin]:
    """Return a fake copy of a module, its graph, and the origin with every submodule that had to be opaque.

    Args:
        method: `export` or `declared`.
        module: the model.
        inputs: of the model.
        origin: how to capture it.
        mode: of the fake tensors.
        samples: the number of samples to trace with.
        compare_modes: also trace the model in evaluation mode, to see that its glue is the same there.
        for_loss: the model is traced for its loss, which does not read lists of samples. They are left out of its
            output, as they are if the origin names the outputs.

    Raises:
        InvalidInput: as `capture`.
    """
    fake = fake_copy(module, mode)
    with mode:
        examples = blank(inputs, samples)
    # torch.export runs outside the mode, so that constant tensors in a forward keep their data.
    if method == "export":
        runs = StaticRuns(fake_copy(module, inside := fake_mode()), inside)
        if for_loss or origin.outputs:
            fake.forward = without_lists(fake.forward, origin.outputs)
        return fake, *_by_export(fake, examples, runs, origin, compare_modes=compare_modes)
    if origin.forms:
        remedy = "Put what arranges them into its first submodules, or use method='export'."
        raise InvalidInput("inputs of a declared graph have no forms", where="forms", remedy=remedy)
    if origin.arguments or origin.outputs:
        remedy = "Its submodules take what they are fed, and its own `output` names what it returns."
        raise InvalidInput("a declared graph has no further arguments and outputs", where="capture", remedy=remedy)
    return fake, _by_declaration(fake, examples), origin


def _by_declaration(fake: nn.Module, examples: Mapping[str, Tensor]) -> ModuleGraph:
    if not isinstance(fake, DagModule):
        remedy = "Put its submodules into a DagModule, or use method='export'."
        raise InvalidInput(f"{type(fake).__name__} is not a DagModule", where="method='declared'", remedy=remedy)
    try:
        with quiet_export():
            return declared_graph(fake, examples)
    except InvalidInput:
        raise
    except Exception as error:
        raise cannot_trace(fake, error) from error


def _by_export(
    fake: nn.Module, examples: Mapping[str, Tensor], runs: StaticRuns, origin: Origin, *, compare_modes: bool
) -> tuple[ModuleGraph, Origin]:
    # A submodule whose forward glue cannot express becomes opaque, and tracing starts again. The returned origin lists
    # these submodules, so that the next capture traces once. If export or a forward is at fault, the error's cause is
    # an ExportFailed or a CannotExpress.
    opaque = list(origin.opaque)
    recorded = recorded_parts(fake, dict(origin.arguments))
    if origin.arguments:
        fake.forward = partial(fake.forward, **dict(origin.arguments))
    if origin.forms:
        fake.forward = taking(fake.forward, dict(origin.forms), [*examples])
    while True:
        paths = opaque_modules(fake, [*origin.split, *(path for path in recorded if path not in opaque)], opaque)
        _check_recorded(paths, recorded)
        try:
            with observed_modes(_glue(fake, paths)) as reads:
                loops = SampleLoops(_samples(examples))
                found = exported_graph(fake, paths, examples, runs, loops, origin.outputs)
            owners = {path for path, module in fake.named_modules() if module in reads}
            follow_modes(found.graph, owners)
            if (compare_modes and (owners or loops.count)) or _writes(found):
                _check_modes(fake, paths, examples, runs, found, owners, origin.outputs)
            return found, replace(origin, opaque=tuple(opaque))
        except CannotExpress as fault:
            inside = {path for path in paths if _inside(fault.path, path)} - runs.hidden - {fault.path}
            if inside:
                runs.hidden |= inside
                continue
            path = _around(fault.path, opaque, origin)
            if not path or path in (*origin.split, *origin.opaque):
                raise cannot_express(fake, fault) from fault
            opaque += _alike(fake, path) if EVERY in origin.split else [path]
        except InvalidInput:
            raise
        except Exception as error:
            found = asking_submodule(error, fake, paths)
            if not found or found in origin.split:
                raise cannot_trace(fake, error) from ExportFailed(str(error))
            opaque += [found, *(each for each in _alike(fake, found) if each not in origin.split)]


def _around(path: str, opaque: Collection[str], origin: Origin) -> str:
    # A submodule that stays whole may still return what glue cannot express. Then the one around it stays whole.
    while path in opaque and path not in origin.opaque:
        path = path.rpartition(".")[0]
    return path


def _alike(fake: nn.Module, path: str) -> list[str]:
    # The submodules of one kind, outermost first: what cannot be followed once cannot be followed in every layer.
    kind = type(fake.get_submodule(path))
    found = [path for path, module in fake.named_modules() if type(module) is kind]
    return [each for each in found if not any(_inside(each, other) for other in found if other != each)]


def _check_recorded(paths: Sequence[str], recorded: Mapping[str, str]) -> None:
    for path in paths:
        if path in recorded:
            key = recorded[path]
            what = f"'{path}' stays whole, and the model is asked for the {key} inside it"
            remedy = f"Take '{path}' out of `opaque`, or set output_{key}=False in the model's configuration."
            raise InvalidInput(what, where="capture", remedy=remedy)


def _check_modes(
    fake: nn.Module,
    paths: Sequence[str],
    examples: Mapping[str, Tensor],
    runs: StaticRuns,
    training: ModuleGraph,
    owners: set[str],
    outputs: Sequence[str],
) -> None:
    # Glue is traced in training mode and would compute the same in evaluation, so it must not depend on the mode. One
    # sample less also shows whether a loop over samples has fixed their number.
    less = {name: each.new_empty((len(each) - 1, *each.shape[1:])) for name, each in examples.items()}
    writes = _writes(training)
    fake.eval()
    runs.root.eval()
    try:
        evaluation = exported_graph(
            fake, paths, less, runs, SampleLoops(_samples(less)), outputs, written=writes.keys()
        )
    finally:
        fake.train()
        runs.root.train()
    follow_modes(evaluation.graph, owners)
    always = _writes(evaluation).keys()
    ours, theirs = (_lines(each, always) for each in (training, evaluation))
    for (line, owner), (other, _) in zip(ours, theirs, strict=False):
        if line != other:
            raise CannotExpress(owner, _DIFFERS)
    if len(ours) != len(theirs):
        raise CannotExpress("", _DIFFERS)
    for buffer in writes.keys() - always:
        _write_only_in_training(training.graph, writes[buffer])


def _samples(examples: Mapping[str, Tensor]) -> int:
    return len(next(iter(examples.values())))


def _writes(found: ModuleGraph) -> dict[str, fx.Node]:
    return {node.meta["writes"]: node for node in found.graph.nodes if "writes" in node.meta}


def _write_only_in_training(graph: fx.Graph, write: fx.Node) -> None:
    with graph.inserting_before(write):
        training = graph.create_node("get_attr", TRAINING)
    training.meta["owner"] = ""
    write.args = (*write.args, training)


def _inside(path: str, whole: str) -> bool:
    return path == whole or path.startswith(whole + ".")


def _glue(fake: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    # The modules whose forwards become glue.
    found = {module: path for path, module in fake.named_modules()}
    return [module for module, path in found.items() if not any(_inside(path, whole) for whole in paths)]


def _lines(found: ModuleGraph, buffers: Collection[str]) -> list[tuple[str, str]]:
    # What the output and the writes into these buffers need: a line of text for each node, and its owner.
    needed: set[fx.Node] = set()
    for node in reversed(found.graph.nodes):
        if node.op == "output" or node.meta.get("writes") in buffers or any(user in needed for user in node.users):
            needed.add(node)
    nodes = [node for node in found.graph.nodes if node in needed]
    names = {node: f"%{number}" for number, node in enumerate(nodes)}
    return [(_line(node, names), node.meta.get("owner", "")) for node in nodes]


def _line(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    args, kwargs = (fx.map_arg(each, lambda other: names[other]) for each in (node.args, node.kwargs))
    return f"{node.op} {node.target} {args} {kwargs}"
