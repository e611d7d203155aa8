"""Targets of samples that are not tensors. Nothing would divide them, and each micro-batch would get those of all."""

from collections.abc import Iterable, Mapping, Sized
from typing import NoReturn, cast

from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.run.stage.tensor_tree import leaves


def check_no_list_of_samples(targets: object, samples: int, where: str = "targets") -> None:
    """Check that targets have no list, array or object of another kind with a value for each sample.

    Args:
        targets: of a mini-batch. Tensors have samples in front.
        samples: of the mini-batch.
        where: the name of the targets, for errors.

    Raises:
        InvalidInput: they have.
    """
    if targets is None or samples == 1 or isinstance(targets, Tensor | int | float | str):
        return
    if isinstance(targets, Mapping):
        for key, value in cast("Mapping[object, object]", targets).items():
            check_no_list_of_samples(value, samples, f"{where}[{key!r}]")
    elif isinstance(targets, Sized) and len(targets) == samples and not leaves(targets):
        _refuse(f"is a {type(targets).__name__} with as many entries as there are samples ({samples})", where)
    elif isinstance(targets, list | tuple):
        for number, value in enumerate(cast("Iterable[object]", targets)):
            check_no_list_of_samples(value, samples, f"{where}[{number}]")
    elif not leaves(targets):
        held = getattr(targets, "__dict__", {})
        name = next((name for name, each in held.items() if isinstance(each, Tensor) and samples in each.shape[:1]), "")
        if name:
            _refuse(f"is a {type(targets).__name__}, whose '{name}' has a row for each sample", where)


def _refuse(what: str, where: str) -> NoReturn:
    raise InvalidInput(
        f"{what}, and cannot be divided into micro-batches",
        where=where,
        remedy="Give a tensor with samples in front, or tuples, lists and dicts of such tensors. A value that is not of"
        " samples belongs to the loss: functools.partial(loss_fn, name=value).",
    )
