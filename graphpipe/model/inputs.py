"""Model inputs by name: the tensors that a user passes, and their description in a graph."""

import inspect
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Input

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def name_inputs(names: Sequence[str], inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors by model input name, in the order of `names`.

    Args:
        names: the model's inputs.
        inputs: one tensor, a sequence of tensors in the order of `names`, or tensors by name.

    Raises:
        InvalidInput: a missing, surplus or unknown input, a value that is not a tensor with samples as its first
            dimension, or inputs that differ in their number of samples.
    """
    _check_kind(inputs)
    if isinstance(inputs, Mapping):
        named = dict(inputs)
        for name in named:
            if name not in names:
                raise InvalidInput(f"the model takes no input '{name}'", remedy=nearest(name, list(names)))
    else:
        tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        if len(tensors) != len(names):
            raise InvalidInput(f"{len(tensors)} inputs were given, the model takes {len(names)}: {', '.join(names)}")
        named = dict(zip(names, tensors, strict=True))
    missing = [name for name in names if name not in named]
    if missing:
        what = f"input '{missing[0]}' is missing; the model takes {', '.join(names)}"
        raise InvalidInput(what, remedy="Give a tensor for each, or mend the name in the model.")
    _check_samples(named)
    return {name: named[name] for name in names}


def input_names(module: nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """Return names for the inputs of `module`, in the order of its forward's parameters.

    Inputs that are given by name keep their names. Others get the names of the forward's parameters, or `input_0`,
    `input_1`, ... if it takes `*args`.

    Raises:
        InvalidInput: more inputs than the forward takes, or a name that is not one of its parameters.
    """
    _check_kind(inputs)
    declared = getattr(module, "input_names", None)
    if isinstance(declared, tuple):
        return cast(tuple[str, ...], declared)
    kinds = inspect.Parameter
    parameters = list(inspect.signature(module.forward).parameters.values())
    named = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    if isinstance(inputs, Mapping):
        # If all names are unknown, the inputs count as given in order: nn.Sequential names its parameter `input`.
        unknown = [name for name in inputs if name not in named]
        if unknown and len(unknown) < len(inputs) and not any(p.kind == kinds.VAR_KEYWORD for p in parameters):
            what = f"the forward of {type(module).__name__} takes no input '{unknown[0]}'"
            raise InvalidInput(what, remedy=nearest(unknown[0], named))
        return tuple(sorted(inputs, key=lambda name: named.index(name) if name in named else len(named)))
    count = 1 if isinstance(inputs, Tensor) else len(inputs)
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.POSITIONAL_ONLY)]
    if any(p.kind == kinds.VAR_POSITIONAL for p in parameters):
        positional += [f"input_{position}" for position in range(len(positional), count)]
    if count > len(positional):
        raise InvalidInput(f"{count} inputs were given, the forward of {type(module).__name__} takes {len(positional)}")
    return tuple(positional[:count])


def describe(named: Mapping[str, Tensor]) -> tuple[Input, ...]:
    """Return the description of inputs that a graph contains."""
    return tuple(
        Input(name=name, sample_shape=tuple(tensor.shape[1:]), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in named.items()
    )


def blank(inputs: Sequence[Input], samples: int) -> dict[str, Tensor]:
    """Return uninitialised tensors of the inputs' shapes; in a fake mode they use no memory."""
    return {
        item.name: torch.empty((samples, *item.sample_shape), dtype=getattr(torch, item.dtype), device="cpu")
        for item in inputs
    }


def _check_kind(inputs: object) -> None:
    if not isinstance(inputs, Tensor | Mapping | Sequence) or isinstance(inputs, str):
        raise InvalidInput(
            f"the inputs are a {type(inputs).__name__}",
            remedy="Give a tensor, a tuple of tensors, or a dict of tensors by the names that the forward gives them.",
        )


def _check_samples(named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"input '{name}' is a {type(tensor).__name__}, not a tensor")
        if tensor.dim() == 0:
            raise InvalidInput(f"input '{name}' is a single number", remedy="Its first dimension must be samples.")
    lengths = {name: tensor.shape[0] for name, tensor in named.items()}
    first = next(iter(lengths.values()), 0)
    if any(length != first for length in lengths.values()):
        counts = ", ".join(f"'{name}' has {length}" for name, length in lengths.items())
        what = f"inputs differ in their number of samples (first dimension): {counts}"
        remedy = "Every input needs one row for each sample. Compute beforehand what depends on other inputs."
        raise InvalidInput(what, remedy=remedy)
