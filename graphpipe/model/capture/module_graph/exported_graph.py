"""A module graph by torch.export: opaque submodules become calls, and the forwards in between become glue."""

import inspect
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from graphpipe.collection_pause import collection_paused
from graphpipe.model.capture.module_graph.broadcast_masks import broadcast_masks
from graphpipe.model.capture.module_graph.calls.hidden_effects import effects_refused
from graphpipe.model.capture.module_graph.calls.opaque_calls import recording
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.capture.module_graph.detach_blocks import detach_blocks
from graphpipe.model.capture.module_graph.module_graph import ModuleGraph
from graphpipe.model.capture.module_graph.opaque_modules import followed_modules
from graphpipe.model.capture.module_graph.translation import Translation, owner_of
from graphpipe.model.capture.module_graph.writes import check_writes, replace_plain_writes
from graphpipe.model.hidden.known_values import KnownValues
from graphpipe.model.hidden.library_draws import library_draws_told
from graphpipe.model.hidden.raising_branches import following_checks
from graphpipe.model.hidden.untraced_losses import TracedLosses
from graphpipe.model.quiet import quiet_export
from graphpipe.model.sample_rows import SampleLoops
from graphpipe.model.torch_private import end_transforms, is_mutable, numbers_kept, transform_depth

_MOST = 2**40
"""Samples at most. Without a bound, torch.export fails at a product of their number that exceeds 63 bits."""

_MANY = 4
"""From so many blocks on that write into views, these stay whole. To make functions of such operators, torch traces the
model twice more. With the attentions of SwinV2 this took more than half of the time."""


class WriteIntoViews(Exception):
    """Small submodules write into views of tensors.

    Args:
        paths: of the submodules.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self.paths = paths


@collection_paused()
def exported_graph(
    fake: nn.Module,
    paths: Sequence[str],
    inputs: Mapping[str, Tensor],
    runs: StaticRuns,
    loops: SampleLoops,
    outputs: Sequence[str] = (),
    written: Collection[str] = (),
    blocks: Collection[str] = (),
) -> ModuleGraph:
    """Return the graph of `fake`, in which the submodules `paths` are opaque.

    Args:
        fake: the model on fake tensors.
        paths: fully qualified names of the opaque submodules.
        inputs: fake model inputs by name; their first dimensions are traced as one symbol.
        runs: of its opaque submodules, in a copy of their own and in the same mode of training.
        loops: over the samples of `inputs`.
        outputs: the entries of its output to return; if empty, the whole output.
        written: buffers of the model's own that its forward writes into in the other mode.
        blocks: small submodules that may stay whole. If many of them write into views, they have to.

    Raises:
        WriteIntoViews: many blocks do.
        CannotExpress: a forward does what glue cannot express.
        InvalidInput: its output has no such entry.
        Exception: any error of torch.export.
    """
    followed = followed_modules(fake, paths)
    told = library_draws_told(followed)  # outside of what keeps warnings of torch.export back
    with told, recording(fake, paths, runs) as calls, loops, broadcast_masks(), numbers_kept(fake), quiet_export():
        with effects_refused(fake, followed), TracedLosses(), KnownValues():
            program = following_checks(partial(_export, fake, inputs))
        check_writes(program, owner_of)
        detach_blocks(program)
        for module in _graphs(program):
            replace_plain_writes(module)
        writes = [node for module in _graphs(program) for node in module.graph.nodes if is_mutable(node.target)]
        if writes:
            writing = {owner_of(node) for node in writes} & {*blocks}
            if len(writing) >= _MANY:
                raise WriteIntoViews(sorted(writing))
        if writes or any(_maps(node.target) for node in program.graph.nodes):
            with _no_map_left():
                program = program.run_decompositions({})  # writes become functions, and vmap becomes what it computes
    return Translation(program, calls, list(inputs), runs.registered, outputs, written).module_graph()


def _maps(target: object) -> bool:
    # Whether a function begins or ends a map over a dimension (`torch.vmap`), or marks its tensors.
    return getattr(target, "__module__", "") == "torch._functorch.predispatch"


@contextmanager
def _no_map_left() -> Generator[None]:
    # A graph that fails between the functions that begin and end a map would leave the map open for the whole process,
    # in which `torch.rand` fails.
    depth = transform_depth()
    try:
        yield
    finally:
        end_transforms(depth)


def _graphs(program: ExportedProgram) -> list[fx.GraphModule]:
    # Blocks in which gradients are switched on or off have graphs of their own.
    return [module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]


def _export(fake: nn.Module, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    shapes, batch = ShapesCollection(), Dim("batch", min=2, max=_MOST)
    for tensor in inputs.values():
        shapes[tensor] = {0: batch}
    args, kwargs = call_arguments(fake, inputs)
    with _declaring(fake, kwargs):
        dynamic = shapes.dynamic_shapes(fake, args, kwargs)
        return torch.export.export(
            fake,
            args,
            kwargs,
            dynamic_shapes=dynamic,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


@contextmanager
def _declaring(module: nn.Module, names: Collection[str]) -> Generator[None]:
    # While inside, the forward has these inputs as parameters: torch.export does not trace `**kwargs`.
    signature = inspect.signature(module.forward)
    if signature.parameters.keys() >= set(names):
        yield
        return
    forward, own = module.forward, "forward" in vars(module)

    def declared(*args: object, **kwargs: object) -> object:
        return forward(*args, **kwargs)

    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    declared.__signature__ = inspect.Signature(keywords)  # pyright: ignore[reportFunctionMemberAccess]
    module.forward = declared
    try:
        yield
    finally:
        del module.forward
        if own:
            module.forward = forward


def call_arguments(module: nn.Module, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in order, and those by name, with which a forward gets its inputs."""
    return ((), {**given}) if takes_names(module, [*given]) else ((*given.values(),), {})


def takes_names(module: nn.Module, names: Sequence[str]) -> bool:
    """Whether a forward takes the inputs by name, perhaps some of them as `**kwargs`, or else in order."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = {each.kind for each in parameters}
    known = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    unknown = [name for name in names if name not in known]
    if not unknown:
        return True
    starred = inspect.Parameter.VAR_POSITIONAL in kinds and all(name.startswith("input_") for name in unknown)
    return inspect.Parameter.VAR_KEYWORD in kinds and not starred and (len(unknown) < len(names) or not known)
