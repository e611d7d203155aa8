"""Mixed precision: forwards and losses under autocast; weights, gradients and the optimizer stay in float32.

    fp32   everything as the model's parameters are
    bf16   matrix products in bfloat16
    fp16   matrix products in float16, and the loss multiplied by a factor so that small gradients do not vanish

What a stage sends is of the dtype that its operations return, and so is the gradient that comes back.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

from graphpipe.errors import InvalidInput, nearest
from graphpipe.run.device.loss_scale import LossScale

PrecisionName = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(name: str) -> None:
    """Check the name of a precision.

    Raises:
        InvalidInput: there is none of this name; the nearest is given.
    """
    if name not in PRECISIONS:
        raise InvalidInput(f"unknown precision '{name}'", where="precision", remedy=nearest(name, list(PRECISIONS)))


def casting(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Return what to compute forwards and losses in."""
    if name not in DTYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[name])


def initial_scale(name: str) -> LossScale | None:
    """Return the factor of the loss at the beginning of a training; None where the loss is left alone."""
    return LossScale() if name == "fp16" else None
