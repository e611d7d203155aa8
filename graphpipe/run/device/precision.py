"""Mixed precision: forwards and losses under autocast; weights, gradients and the optimizer stay in float32.

    fp32   everything in the dtype of the model's parameters
    bf16   matrix products in bfloat16
    fp16   matrix products in float16, and the loss multiplied by a factor so that small gradients do not vanish

A stage sends values in the dtype that its operations return, and receives their gradients in the same dtype.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
from pydantic import ConfigDict, Field

from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_body import Count

GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The factor of the loss, and when it last changed."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    factor: Annotated[float, Field(gt=0, lt=math.inf)] = 2.0**16
    """A power of two, so that gradients are scaled and unscaled without rounding."""
    good_steps: Count = 0
    """Steps with finite gradients since the factor last changed."""

    @property
    def exhausted(self) -> bool:
        """True if a smaller factor would not help, because the factor is not the cause of infinite gradients."""
        return self.factor <= 1.0

    def after(self, *, finite: bool) -> "LossScale":
        """Return the factor after a step whose gradients were all finite, or were not."""
        if not finite:
            return LossScale(factor=self.factor * BACKOFF)
        if self.good_steps + 1 == GROWTH_INTERVAL:
            return LossScale(factor=self.factor * GROWTH)
        return LossScale(factor=self.factor, good_steps=self.good_steps + 1)


PrecisionName = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(name: str) -> None:
    """Check the name of a precision.

    Raises:
        InvalidInput: the name is unknown; the error suggests the nearest.
    """
    if name not in PRECISIONS:
        raise InvalidInput(f"unknown precision '{name}'", where="precision", remedy=nearest(name, list(PRECISIONS)))


def autocast_context(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context for forwards and losses."""
    if name not in DTYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[name])


def initial_scale(name: str) -> LossScale | None:
    """Return the loss scale at the start of a training; None if the loss is not scaled."""
    return LossScale() if name == "fp16" else None
