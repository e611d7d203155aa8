"""Inputs that a model does not take with samples in front, such as the patches of all images in one dimension.

A pipeline divides every input by samples. Such an input is given with samples in front, and gets the form that the
model takes where its forward begins. Every sample has the same number of rows. The forms, for N samples:

    form          as the model takes it    with samples in front    example
    joined        [N x rows, ...]          [N, rows, ...]           patches of images
    second        [first, N, ...]          [N, first, ...]          positions in three dimensions
    cumulative    [N x parts + 1]          [N, parts]               ends of sequences, given as lengths
    permutation   [N x rows, ...]          [N, rows, ...]           an order of the rows of each sample
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput, nearest

Form = Literal["joined", "second", "cumulative", "permutation"]
FORMS: tuple[Form, ...] = get_args(Form)


def check_forms(forms: Mapping[str, str], names: Sequence[str]) -> None:
    """Check that every form is known, and belongs to an input.

    Raises:
        InvalidInput: it is not.
    """
    for name, form in forms.items():
        if form not in FORMS:
            raise InvalidInput(f"'{form}' is not a form of an input", where="forms", remedy=nearest(form, [*FORMS]))
        if name not in names:
            raise InvalidInput(f"the model takes no input '{name}'", where="forms", remedy=nearest(name, [*names]))


def by_samples(name: str, tensor: Tensor, form: str, samples: int) -> Tensor:
    """Return an input with samples in front.

    Args:
        name: of the input.
        tensor: as the model takes it.
        form: of the input.
        samples: of the mini-batch.

    Raises:
        InvalidInput: its shape, or the values of a cumulative sum or an order, do not fit the number of samples.
    """
    if form == "second":
        _check_second(name, tensor, samples)
        return tensor.transpose(0, 1).contiguous()
    rows = tensor.diff() if form == "cumulative" else tensor
    if not len(rows) or len(rows) % samples:
        remedy = "Every sample needs the same number of rows: images of one size, and as many for each sample."
        raise InvalidInput(f"input '{name}' has {len(rows)} rows for {samples} samples", where="inputs", remedy=remedy)
    found = rows.unflatten(0, (samples, len(rows) // samples))
    if form == "permutation":
        found = found - _starts(found)
        orders = found.flatten(1)
        if not torch.equal(orders.sort(1).values, torch.arange(orders.shape[1]).expand_as(orders).to(orders)):
            what = f"input '{name}' does not order the rows of each sample, but moves rows between samples"
            raise InvalidInput(what, where="inputs", remedy="Make mini-batches of images of one size.")
    return found


def _check_second(name: str, tensor: Tensor, samples: int) -> None:
    if tensor.dim() < 2 or tensor.shape[1] != samples:
        what = f"input '{name}' has the shape {[*tensor.shape]}, but its second dimension must be {samples} samples"
        raise InvalidInput(what, where="inputs", remedy="Give a row for each sample, or leave its form out.")


def as_taken(tensor: Tensor, form: str) -> Tensor:
    """Return an input as the model takes it, given with samples in front."""
    match form:
        case "second":
            return tensor.transpose(0, 1)
        case "cumulative":
            ends = tensor.flatten(0, 1).cumsum(0, dtype=tensor.dtype)
            return torch.nn.functional.pad(ends, (1, 0))
        case "permutation":
            return (tensor + _starts(tensor)).flatten(0, 1)
        case _:
            return tensor.flatten(0, 1)


def _starts(orders: Tensor) -> Tensor:
    # The first row of each sample.
    samples = torch.arange(orders.shape[0], device=orders.device, dtype=orders.dtype)
    return samples.view(-1, *(1 for _ in orders.shape[1:])) * orders.shape[1:].numel()


def taking(forward: Callable[..., Any], forms: Mapping[str, str], names: Sequence[str]) -> Callable[..., Any]:
    """Return a forward that takes inputs with samples in front.

    Args:
        forward: of a model.
        forms: of its inputs.
        names: of its inputs, in the order of positional arguments.
    """

    @wraps(forward)
    def arranged(*args: Any, **kwargs: Any) -> Any:
        positional = [_arranged(name, each, forms) for name, each in zip(names, args, strict=False)]
        return forward(*positional, **{name: _arranged(name, each, forms) for name, each in kwargs.items()})

    return arranged


def _arranged(name: str, value: Any, forms: Mapping[str, str]) -> Any:
    return as_taken(value, forms[name]) if name in forms and isinstance(value, Tensor) else value
