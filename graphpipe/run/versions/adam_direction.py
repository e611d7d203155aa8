"""The next update of Adam and AdamW: the bias-corrected mean of the gradients over the root of that of their squares.

Kingma and Ba, Adam (ICLR 2015), Algorithm 1. AdamW's decoupled decay is not part of it: PipeOptim does not predict it.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def adam_direction(group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor | None:
    """Return what the last update subtracted per learning rate: m_hat / (sqrt(v_hat) + eps); None before an update.

    Args:
        group: options of the parameter's group.
        state: of the optimizer for the parameter.
    """
    if not state:
        return None
    (beta1, beta2), step = group["betas"], float(state["step"])
    mean: Tensor = state["exp_avg"]
    squares: Tensor = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    root = squares.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
    direction = mean.div(root).div_(1 - beta1**step)
    return direction.neg_() if group["maximize"] else direction
