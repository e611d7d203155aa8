"""The next update of SGD with momentum: its momentum buffer, m_t = u m_{t-1} + (1 - dampening) g_t."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from graphpipe.errors import InvalidInput


def momentum_direction(group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor | None:
    """Return what the last update subtracted per learning rate; None before an update.

    Args:
        group: options of the parameter's group.
        state: of the optimizer for the parameter.
    """
    buffer: Tensor | None = state.get("momentum_buffer")
    if buffer is None:
        return None
    return buffer.neg() if group["maximize"] else buffer.clone()


def check_momentum(group: Mapping[str, Any]) -> None:
    """Check that the options of a parameter group make the momentum buffer the next update.

    Raises:
        InvalidInput: there is no momentum, or it is Nesterov's, whose update needs the next gradient.
    """
    if not group["momentum"] or group["nesterov"]:
        kind = "Nesterov's momentum" if group["nesterov"] else "no momentum"
        raise InvalidInput(
            f"SGD has {kind}, and the weight policy 'predict' predicts weights from the momentum buffer",
            where="optimizer",
            remedy="Set momentum without nesterov, choose Adam or AdamW, or plan with weights='stash'.",
        )
