"""Balanced mini-batches: samples are put into an order in which micro-batches and replicas have about the same work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphpipe.balance.balanced_order import balanced_order
from graphpipe.balance.blocks import Blocks
from graphpipe.errors import InvalidInput, nearest
from graphpipe.plans import Plan
from graphpipe.run.stage.given_order import GivenOrder
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.tensor_tree import map_tensors

WorkFunction = Callable[[Mapping[str, Tensor]], "Tensor | Sequence[float]"]
"""Inputs by name -> the work of each sample: [samples], or [samples, kinds] for several kinds of work."""
Balance = str | WorkFunction | Sequence["str | WorkFunction"]
"""The name of an input, a function, or several of these. An input with one number for each sample is the work itself.
Of another one, the numbers that are not 0 count, such as those of a mask."""
WORK_REMEDY = "Give a number of at least 0 for each sample, or a row of them for several kinds of work."
"""What to do about work that is not such a number."""


def balanced(batch: MiniBatch, plan: Plan, balance: Balance) -> MiniBatch:
    """Return the mini-batch with its samples in a balanced order.

    Args:
        batch: all samples, in the order in which they were given.
        plan: for so many samples.
        balance: says how much work each sample is.

    Raises:
        InvalidInput: an input is unknown, or the work is not a number of at least 0 for each sample.
    """
    order = torch.from_numpy(balanced_order(work_of(batch, balance), Blocks.of(plan)))  # pyright: ignore[reportUnknownMemberType]
    if torch.equal(order, torch.arange(batch.size)):
        return batch
    places = torch.empty_like(order)
    places[order] = torch.arange(batch.size)
    given = None
    if batch.size in batch.micro_batches:
        given = GivenOrder(inputs=dict(batch.inputs), targets=batch.targets, order=order, places=places)

    def place(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, order.to(tensor.device))

    inputs = {name: place(tensor) for name, tensor in batch.inputs.items()}
    return replace(batch, inputs=inputs, targets=map_tensors(batch.targets, place), given_order=given)


def work_of(batch: MiniBatch, balance: Balance) -> NDArray[np.float64]:
    """Return the work of each sample, [samples, kinds].

    Raises:
        InvalidInput: as `balanced`.
    """
    parts = (balance,) if isinstance(balance, str) or callable(balance) else balance
    return np.concatenate([_work(batch, part) for part in parts], axis=1)


def _work(batch: MiniBatch, part: str | WorkFunction) -> NDArray[np.float64]:
    if isinstance(part, str):
        if part not in batch.inputs:
            known = [*batch.inputs]
            raise InvalidInput(f"'{part}' is no input of the model", where="balance", remedy=nearest(part, known))
        found, what = _work_of_input(batch.inputs[part]), f"input '{part}'"
    else:
        found, what = part(batch.inputs), "the function"
    try:
        table = torch.as_tensor(cast("Tensor", found)).detach().to("cpu", torch.float64).numpy()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"{what} gives a {type(found).__name__}", where="balance", remedy=WORK_REMEDY) from None
    if table.ndim not in (1, 2) or len(table) != batch.size:
        shape = list(table.shape)
        raise InvalidInput(
            f"{what} gives {shape} numbers for {batch.size} samples", where="balance", remedy=WORK_REMEDY
        )
    if not np.isfinite(table).all() or (table < 0).any():
        raise InvalidInput(f"{what} gives {table.min()} for a sample", where="balance", remedy=WORK_REMEDY)
    return table.reshape(batch.size, -1)


def _work_of_input(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 1 else tensor.flatten(1).count_nonzero(1)
