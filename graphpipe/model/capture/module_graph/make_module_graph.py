"""The skeleton of a model by either method, and what to say when there is none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Origin
from graphpipe.model.capture.module_graph.declared_graph import declared_skeleton
from graphpipe.model.capture.module_graph.exported_graph import export_skeleton, quiet
from graphpipe.model.capture.module_graph.module_graph import CannotFollow, Skeleton
from graphpipe.model.capture.module_graph.opaque_modules import is_container, whole_paths
from graphpipe.model.dag_module import DagModule
from graphpipe.model.torch_private import asks_for_values
from graphpipe.user_frames import describe, user_place

_UNKNOWN = re.compile(r"Found <class '(.+?)'> in output, which is not a known type")
_SAMPLES = re.compile(r"\bs\d+\b")
"""How torch.export writes the number of samples, of which it knows only that it is variable."""


class ExportFailed(Exception):
    """torch.export gave up."""


def trace_declared(twin: nn.Module, examples: Mapping[str, Tensor]) -> Skeleton:
    """Return the skeleton of a DagModule as it was declared.

    Raises:
        InvalidInput: no DagModule, or a submodule that does not run on fake tensors.
    """
    if not isinstance(twin, DagModule):
        remedy = "Put its submodules into a DagModule, or use method='export'."
        raise InvalidInput(f"{type(twin).__name__} is no DagModule", where="method='declared'", remedy=remedy)
    try:
        with quiet():
            return declared_skeleton(twin, examples)
    except InvalidInput:
        raise
    except Exception as error:
        raise cannot_trace(twin, error) from error


def trace_exported(
    twin: nn.Module, examples: Mapping[str, Tensor], origin: Origin, *, compare_modes: bool
) -> tuple[Skeleton, Origin]:
    """Return the skeleton of a module through torch.export, and how to make it again without detours.

    A submodule whose forward glue cannot express is kept whole, and the tracing starts again.

    Raises:
        InvalidInput: the model itself, or a submodule that was to be split, does what glue cannot express (caused by
            CannotFollow); or torch.export fails (caused by ExportFailed).
    """
    opaque = list(origin.opaque)
    if origin.arguments:
        twin.forward = partial(twin.forward, **dict(origin.arguments))
    while True:
        paths = whole_paths(twin, origin.split, opaque)
        try:
            skeleton = export_skeleton(twin, paths, examples, origin.outputs)
            if compare_modes:
                _check_modes(twin, paths, examples, skeleton, origin.outputs)
            return skeleton, replace(origin, opaque=tuple(opaque))
        except CannotFollow as fault:
            if not fault.path or fault.path in (*origin.split, *opaque):
                raise _cannot_follow(twin, fault) from fault
            opaque.append(fault.path)
        except InvalidInput:
            raise
        except Exception as error:
            raise cannot_trace(twin, error) from ExportFailed(str(error))


def _check_modes(
    twin: nn.Module,
    paths: Sequence[str],
    examples: Mapping[str, Tensor],
    training: Skeleton,
    outputs: Sequence[str],
) -> None:
    # Glue is the same in training and evaluation, or it cannot be followed: traced in one mode, it would stay there.
    glue = [module for path, module in twin.named_modules() if not any(_inside(path, whole) for whole in paths)]
    if not any(_mentions_training(module) for module in glue if not is_container(module)):
        return
    twin.eval()
    try:
        evaluation = export_skeleton(twin, paths, examples, outputs)
    finally:
        twin.train()
    ours, theirs = (list(skeleton.graph.nodes) for skeleton in (training, evaluation))
    for node, other in zip(ours, theirs, strict=False):
        if _line(node) != _line(other):
            raise CannotFollow(node.meta.get("owner", ""), "behaves differently in training and in evaluation")
    if len(ours) != len(theirs):
        raise CannotFollow("", "behaves differently in training and in evaluation")


def _inside(path: str, whole: str) -> bool:
    return path == whole or path.startswith(whole + ".")


def _mentions_training(module: nn.Module) -> bool:
    functions = [vars(kind).values() for kind in type(module).__mro__ if not kind.__module__.startswith("torch.nn")]
    codes = [getattr(function, "__code__", None) for values in functions for function in values]
    return any(code is not None and "training" in code.co_names for code in codes)


def _line(node: fx.Node) -> str:
    return f"{node.op} {node.target} {node.args} {node.kwargs}"


def _cannot_follow(twin: nn.Module, fault: CannotFollow) -> InvalidInput:
    where = f"'{fault.path}'" if fault.path else f"{type(twin).__name__}, the model itself,"
    remedy = "Move that part into a submodule (nn.Dropout instead of F.dropout): submodules are kept whole."
    if fault.path:
        remedy = f"Do not split '{fault.path}', or keep a submodule around it whole (opaque=[...])."
    return InvalidInput(f"the forward of {where} {fault.reason}", where="capture", remedy=remedy)


def cannot_trace(twin: nn.Module, error: Exception) -> InvalidInput:
    """Return the error that says why a model does not run on fake tensors, and the way out."""
    what = f"{type(twin).__name__} cannot be traced"
    if asks_for_values(error):
        place = f" ({at})" if (at := user_place(error)) else ""
        return InvalidInput(
            f"{what}: its forward decides by the values in a tensor{place}, and there are none before it runs",
            where="capture",
            remedy="Use torch.where instead of `if`, and tensors instead of .item(), int() and .numpy().",
        )
    if found := _UNKNOWN.search(str(error)):
        name = found[1].rpartition(".")[2]
        return InvalidInput(
            f"{what}: it returns a {name}, and PyTorch does not know what is in it",
            where="capture",
            remedy=f"Return tensors, tuples, lists, dicts; a dataclass after torch.export.register_dataclass({name}).",
        )
    remedy = (
        "If plain PyTorch runs it, keep the submodule at fault whole (opaque=[...]), or declare the graph with a "
        "DagModule."
    )
    said = _SAMPLES.sub("samples", describe(error).removeprefix("RuntimeError: "))
    return InvalidInput(f"{what}: {said}", where="capture", remedy=remedy)
