"""The graph of a module, by torch.export or from the declaration of a DagModule."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input, InputLayout, Origin
from graphpipe.model.capture.module_graph.attempts import Attempts
from graphpipe.model.capture.module_graph.calls.hidden_effects import warn_of_counters
from graphpipe.model.capture.module_graph.calls.remembered_values import warn_of_remembered
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.capture.module_graph.compare_modes import difference, evaluation_output, writes, writes_unseen
from graphpipe.model.capture.module_graph.declared_graph import declared_graph
from graphpipe.model.capture.module_graph.exported_graph import (
    WriteIntoViews,
    call_arguments,
    exported_graph,
    takes_names,
)
from graphpipe.model.capture.module_graph.failures import (
    CannotExpress,
    cannot_express,
    cannot_trace,
)
from graphpipe.model.capture.module_graph.mode_reads import follow_modes, observed_modes
from graphpipe.model.capture.module_graph.module_graph import TRAINING, ModuleGraph
from graphpipe.model.capture.module_graph.opaque_modules import followed_modules, is_inside, small_blocks
from graphpipe.model.dag_module import DagModule
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.hidden.registered_tensors import RegisteredTensors
from graphpipe.model.inputs import blank, taking_tensors
from graphpipe.model.inputs.input_forms import taking
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
        compare_modes: also trace the model in evaluation mode, to see whether its glue is the same there. This is done
            too if the origin says that it is not.
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
        root = fake_copy(module, inside := fake_mode())
        runs = StaticRuns(root, inside, RegisteredTensors.of(module, fake, root))
        if for_loss or origin.outputs:
            fake.forward = without_lists(fake.forward, origin.outputs)
        return fake, *_by_export(fake, examples, runs, origin, mode, compare_modes=compare_modes)
    if origin.forms:
        remedy = "Put what arranges them into its first submodules, or use method='export'."
        raise InvalidInput("inputs of a declared graph have no forms", where="forms", remedy=remedy)
    if origin.parts:
        remedy = "Name each tensor as an input of its own, or use method='export'."
        raise InvalidInput("a declared graph takes tensors only", where="inputs", remedy=remedy)
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
    except CannotExpress as fault:
        raise cannot_express(fake, fault) from fault
    except InvalidInput:
        raise
    except Exception as error:
        raise cannot_trace(fake, error) from error


def _by_export(
    fake: nn.Module,
    examples: Mapping[str, Tensor],
    runs: StaticRuns,
    origin: Origin,
    mode: AbstractContextManager[object],
    *,
    compare_modes: bool,
) -> tuple[ModuleGraph, Origin]:
    # Tracing starts again until an attempt succeeds. The returned origin lists the submodules that are then opaque or
    # split, so that the next capture traces once. If export or a forward is at fault, the error's cause is an
    # ExportFailed or a CannotExpress.
    recorded = _with_inputs(fake, examples, origin)
    attempts = Attempts(fake, partial(_call, fake, examples, mode), [*examples.values()], origin, runs, recorded)
    while True:
        paths = attempts.opaque_modules()
        _check_recorded(paths, recorded)
        followed = followed_modules(fake, paths)
        try:
            with observed_modes(followed) as reads:
                loops = SampleLoops(_samples(examples), lengths=attempts.lengths)
                blocks = small_blocks(fake, attempts.split)
                found = exported_graph(fake, paths, examples, runs, loops, origin.outputs, blocks=blocks)
            if attempts.follow_reaching():
                continue
            warn_of_counters(followed)
            warn_of_remembered(fake, followed, attempts.call)
            owners = {path for path, module in fake.named_modules() if module in reads}
            follow_modes(found.graph, owners)
            if ((compare_modes or origin.modes_differ) and (owners or loops.count)) or writes(found):
                again = _Again(fake, paths, examples, runs, owners, origin.outputs, attempts.lengths)
                found = _compared(found, again, origin, loops=loops.count > 0)
            return found, replace(
                origin,
                opaque=tuple(attempts.opaque),
                split=tuple(attempts.split),
                modes_differ=found.in_evaluation is not None,
            )
        except WriteIntoViews as fault:
            attempts.opaque += fault.paths
        except CannotExpress as fault:
            attempts.cannot_express(fault, paths)
        except InvalidInput:
            raise
        except Exception as error:
            attempts.cannot_trace(error, paths)


def _with_inputs(fake: nn.Module, examples: Mapping[str, Tensor], origin: Origin) -> dict[str, str]:
    # Lets the forward take the model's inputs. Returns the submodules in which something is recorded, and what.
    constants = {str(part.path[0]): part.value for part in origin.parts if len(part.path) == 1}
    recorded = recorded_parts(fake, {**dict(origin.arguments), **constants})
    if origin.arguments:
        fake.forward = partial(fake.forward, **dict(origin.arguments))
    if origin.parts:
        named = takes_names(fake, InputLayout(names=(), parts=origin.parts).arguments)
        fake.forward = taking_tensors(fake.forward, origin.parts, by_name=named)
    if origin.forms:
        fake.forward = taking(fake.forward, dict(origin.forms), [*examples])
    return recorded


def _call(fake: nn.Module, examples: Mapping[str, Tensor], mode: AbstractContextManager[object]) -> object:
    args, kwargs = call_arguments(fake, examples)
    with mode:
        return fake(*args, **kwargs)


def _check_recorded(paths: Sequence[str], recorded: Mapping[str, str]) -> None:
    for path in paths:
        if path in recorded:
            key = recorded[path]
            what = f"'{path}' stays whole, and the model is asked for the {key} inside it"
            remedy = f"Take '{path}' out of `opaque`, or set output_{key}=False in the model's configuration."
            raise InvalidInput(what, where="capture", remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Again:
    """Traces a model once more with one sample less, which also shows whether a loop has fixed their number."""

    fake: nn.Module
    paths: Sequence[str]
    examples: Mapping[str, Tensor]
    runs: StaticRuns
    owners: Collection[str]
    """Paths of the modules that read their mode."""
    outputs: Sequence[str]
    lengths: bool
    """Whether `len` of a tensor may be the variable number of samples."""

    def graph(self, written: Collection[str], *, training: bool) -> ModuleGraph:
        """Return the graph in a mode, given the buffers that the forward writes into in training."""
        less = {name: each.new_empty((len(each) - 1, *each.shape[1:])) for name, each in self.examples.items()}
        loops = SampleLoops(_samples(less), lengths=self.lengths)
        self.fake.train(training)
        self.runs.root.train(training)
        try:
            found = exported_graph(self.fake, self.paths, less, self.runs, loops, self.outputs, written=written)
        finally:
            self.fake.train()
            self.runs.root.train()
        follow_modes(found.graph, self.owners)
        return found

    def reader(self, paths: Sequence[str]) -> str:
        """Return the innermost submodule, at or around one of some paths, that reads its mode, or else the first."""
        around = [other for other in self.owners if any(not other or is_inside(path, other) for path in paths)]
        return max(around, key=len, default=paths[0])

    def has_most(self, path: str) -> bool:
        """Whether a submodule has most of the model's parameters, so that little could be cut without it."""
        every, inside = self.fake.parameters(), self.fake.get_submodule(path).parameters()
        return 2 * sum(each.numel() for each in inside) > sum(each.numel() for each in every)


def _compared(training: ModuleGraph, again: _Again, origin: Origin, *, loops: bool) -> ModuleGraph:
    # Glue is traced in training mode. Where it depends on the mode, a small submodule stays whole. The model itself may
    # return something else in evaluation, such as the outputs without those of auxiliary heads.
    written = writes(training)
    evaluation = again.graph(written.keys(), training=False)
    always = writes(evaluation).keys()
    owners = difference(training, evaluation, always)
    if owners is None:
        for buffer in written.keys() - always:
            _write_only_in_training(training.graph, written[buffer])
        return training
    if written or always or writes_unseen(training) or any(is_inside(owners[0], path) for path in again.paths):
        raise CannotExpress(owners[0], _DIFFERS)
    if loops and difference(training, again.graph((), training=True), ()) is not None:
        raise CannotExpress(owners[0], _DIFFERS)
    found, reader = evaluation_output(training, evaluation), again.reader(owners)
    if found.leaves is None and reader and not again.has_most(reader):
        raise CannotExpress(reader, _DIFFERS)
    return replace(training, in_evaluation=found)


def _samples(examples: Mapping[str, Tensor]) -> int:
    return len(next(iter(examples.values())))


def _write_only_in_training(graph: fx.Graph, write: fx.Node) -> None:
    with graph.inserting_before(write):
        training = graph.create_node("get_attr", TRAINING)
    training.meta["owner"] = ""
    write.args = (*write.args, training)
