"""The next update of Adam and AdamW: the bias-corrected mean of the gradients over the root of that of their squares.

Kingma and Ba, Adam (ICLR 2015), Algorithm 1. AdamW's decoupled decay is not part of it: PipeOptim does not predict it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def adam_direction(group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor | None:
    """Return what the last update subtracted per learning rate: m_hat / (sqrt(v_hat) + eps); None before an update.

    Args:
        group: options of the parameter's group.
        state: of the optimizer for the parameter.
    """
    if not state:
        return None
    (beta1, beta2), count = group["betas"], state["step"]
    # A fused or capturable optimizer counts on the device, and the host does not wait for it.
    step: float | Tensor = float(count) if torch.as_tensor(count).device.type == "cpu" else count
    mean: Tensor = state["exp_avg"]
    squares: Tensor = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    root = squares.sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
    direction = mean.div(root).div_(1 - beta1**step)
    return direction.neg_() if group["maximize"] else direction
