"""Which submodule of a stage mixes the samples of a batch, found by what each of them gets and returns."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.graph import Mixing
from graphpipe.model.capture.batch_statistics import what_and_remedy
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.run.stage.losses.parts_of_samples import Parts, computed, follows
from graphpipe.run.stage.losses.undisturbed import undisturbed
from graphpipe.run.stage.tensor_tree import leaves

_Calls = list[tuple[str, list[Tensor], list[Tensor]]]
"""The path of each submodule that was called, what it got and what it returned."""


def mixing_place(program: ModuleStage, parts: Parts) -> tuple[str, str] | None:
    """Return what is wrong with the first submodule that mixes samples, and the remedy; None if it is none of them.

    Args:
        program: of a stage that mixes samples.
        parts: samples as a whole, and in two parts.
    """
    called = dict(called_modules(program.module))
    runs: list[_Calls] = []
    with undisturbed(parts.device):
        for part in (parts.whole, *parts.halves):
            with _noted(called) as calls:
                computed(program, part)
            runs.append(calls)
    rows = parts.whole.rows
    for (path, given, returned), *others in zip(*runs, strict=False):
        got, found = [each[1] for each in others], [each[2] for each in others]
        if follows(given, got, rows) and not follows(returned, found, rows):
            return what_and_remedy(Mixing(where=path, operator=""))
    return None


def called_modules(module: nn.Module) -> Generator[tuple[nn.Module, str]]:
    """Yield the user's submodules that the module of a stage calls, with their paths in the user's model."""
    if isinstance(module, RecomputeRegion):
        yield from called_modules(module.inner)
    if not isinstance(module, fx.GraphModule):
        return
    for node in module.graph.nodes:
        if node.op == "call_module":
            inner = module.get_submodule(str(node.target))
            if isinstance(inner, RecomputeRegion):
                yield from called_modules(inner)
            elif "path" in node.meta:
                yield inner, node.meta["path"]


@contextmanager
def _noted(called: dict[nn.Module, str]) -> Generator[_Calls]:
    calls: _Calls = []

    def note(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        given = [each.detach().clone() for each in leaves([*args, *kwargs.values()])]
        calls.append((called[module], given, [each.detach().clone() for each in leaves(result)]))

    scripted = [each for each in called if isinstance(each, torch.jit.ScriptModule)]  # which take no hooks
    handles = [each.register_forward_hook(note, with_kwargs=True) for each in called if each not in scripted]
    try:
        for each in scripted:
            vars(each)["forward"] = partial(_called, each, each.forward, note)
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for each in scripted:
            vars(each).pop("forward", None)  # it is found again in what was compiled


def _called(module: nn.Module, forward: Callable[..., Any], note: Callable[..., None], *args: Any, **named: Any) -> Any:
    result = forward(*args, **named)
    note(module, args, named, result)
    return result
