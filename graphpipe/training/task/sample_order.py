"""The order of samples in an epoch, which depends on the epoch and the seed alone."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Sampler

from graphpipe.errors import InvalidInput
from graphpipe.run.device.rng import derive_seed
from graphpipe.run.device.seeded import seeded
from graphpipe.training.task.user_function import why_not_called

OrderFunction = Callable[[int, int], Iterable[int]]
"""(epoch from 0, seed) -> indices of the samples, in order."""


def epoch_order(sampler: "OrderFunction | Sampler[int] | None", count: int, epoch: int, seed: int) -> Tensor:
    """Return the indices of an epoch's samples, in order (int64).

    Args:
        sampler: a function of epoch and seed, a sampler of torch, or None: all samples in a random order. A sampler of
            torch is told the epoch (`set_epoch`), and its random numbers begin anew in every epoch.
        count: samples of the data set.
        epoch: from 0.
        seed: of the training.

    Raises:
        InvalidInput: it gives something other than indices of the data set.
    """
    number = derive_seed(seed, epoch)
    if sampler is None:
        return torch.randperm(count, generator=torch.Generator().manual_seed(number))
    with seeded(number):
        if isinstance(sampler, Sampler):
            found = _of_torch(cast("Sampler[int]", sampler), epoch, number)
        else:
            found = sampler(epoch, seed)
    return _checked(found, count)


def check_sampler(sampler: object) -> None:
    """Check what a task gives as its sampler.

    Raises:
        InvalidInput: it is neither a sampler of torch nor a function of epoch and seed.
    """
    if sampler is None or isinstance(sampler, Sampler):
        return
    what = "sampler must be a sampler of torch, or a function of (epoch, seed) that returns indices"
    if not callable(sampler):
        raise InvalidInput(f"{what}, not a {type(sampler).__name__}", where="Task")
    if why := why_not_called(sampler, "epoch", "seed"):
        raise InvalidInput(f"{what}: {why}", where="Task")


def _of_torch(sampler: "Sampler[int]", epoch: int, seed: int) -> Iterable[int]:
    if callable(set_epoch := getattr(sampler, "set_epoch", None)):
        set_epoch(epoch)
    if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        generator.manual_seed(seed)  # Otherwise its order would depend on the epochs that were drawn before.
    return [*sampler]


def _checked(found: object, count: int) -> Tensor:
    given = found if isinstance(found, Tensor) else [*cast("Sequence[Any]", found)] if _can_iterate(found) else None
    try:
        order = torch.as_tensor(given if given is not None else "", dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        order = None
    if order is None or order.ndim != 1 or (isinstance(found, Tensor) and found.is_floating_point()):
        kind = type(given[0]).__name__ if isinstance(given, list) and given else type(found).__name__
        raise InvalidInput(
            f"gave a {kind}, must give the indices of samples one by one",
            where="sampler",
            remedy="Return integers from 0 up, such as torch.randperm(len(dataset)). Mini-batches are made of them.",
        )
    least, most = (int(order.min()), int(order.max())) if len(order) else (0, 0)
    if least < 0 or most >= max(count, 1):
        wrong = least if least < 0 else most
        raise InvalidInput(f"gave the index {wrong}, the data set has {count} samples", where="sampler")
    return order


def _can_iterate(found: object) -> bool:
    return isinstance(found, Iterable)
