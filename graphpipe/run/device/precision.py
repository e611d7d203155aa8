"""Mixed precision: forwards and losses under autocast; weights, gradients and the optimizer stay in float32.

    fp32   everything in the dtype of the model's parameters
    bf16   matrix products in bfloat16
    fp16   matrix products in float16, and the loss multiplied by a factor so that small gradients do not vanish

A stage sends values in the dtype that its operations return, and receives their gradients in the same dtype.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import ConfigDict, Field

from graphpipe.devices.registry import kind_of
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import Count
from graphpipe.graph import Precision
from graphpipe.plans import Plan

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


def check_planned_precision(plan: Plan, precision: Precision, *, where: str = "precision") -> None:
    """Check that a run has the precision whose bytes its plan counts.

    A plan of an earlier version, or of stages that were written by hand, does not say it. Then any precision may run.

    Args:
        plan: to be run.
        precision: of the run.
        where: the setting.

    Raises:
        InvalidInput: they differ.
    """
    planned = plan.graph.origin.precision if plan.graph.origin is not None else None
    if planned not in (None, precision):
        what = f"is {precision}, but the plan counts the memory and messages of {planned}"
        remedy = f"Set it to {planned}, or capture the model and plan again with precision {precision}."
        raise InvalidInput(what, where=where, remedy=remedy)


def check_precision_of_device(device: torch.device, precision: Precision) -> None:
    """Check that a device can compute forwards of this precision.

    Raises:
        InvalidInput: it cannot; the error names those that it can.
    """
    kind = kind_of(device)
    if precision not in kind.precisions:
        what = f"is {precision}, which {kind.name} devices cannot compute"
        raise InvalidInput(what, where="precision", remedy=f"Choose {' or '.join(kind.precisions)}.")


def initial_scale(name: str) -> LossScale | None:
    """Return the loss scale at the start of a training; None if the loss is not scaled."""
    return LossScale() if name == "fp16" else None
