"""The factor of the loss in float16 training (Micikevicius et al., Mixed Precision Training, 2018, section 3.2).

It moves as `torch.amp.GradScaler`'s does, with the same numbers. That one decides per process: here the gradients of
all stages are looked at together, and all ranks skip the same steps.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from graphpipe.files.json_document import Count

GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The factor now."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    factor: Annotated[float, Field(gt=0, lt=math.inf)] = 2.0**16
    """A power of two, so that gradients are scaled and put back without rounding."""
    good_steps: Count = 0
    """Since the factor last changed."""

    @property
    def exhausted(self) -> bool:
        """True when a smaller factor would help nobody: it is not the factor that makes gradients infinite."""
        return self.factor <= 1.0

    def after(self, *, finite: bool) -> "LossScale":
        """Return the factor after a step whose gradients were all finite, or were not."""
        if not finite:
            return LossScale(factor=self.factor * BACKOFF)
        if self.good_steps + 1 == GROWTH_INTERVAL:
            return LossScale(factor=self.factor * GROWTH)
        return LossScale(factor=self.factor, good_steps=self.good_steps + 1)
