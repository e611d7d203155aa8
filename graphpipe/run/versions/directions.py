"""The optimizers whose weights can be predicted, and the prediction: W - lr x horizon x the last update's direction.

Guan et al., PipeOptim (2023), section 3, equation 4. SpecTrain and XPipe predict in the same way over other horizons,
which `schedule.segments.weight_versions` gives.

    optimizer             direction                    file
    SGD with momentum     m                            momentum_direction
    Adam, AdamW           m_hat / (sqrt(v_hat) + eps)  adam_direction
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from graphpipe.errors import InvalidInput
from graphpipe.run.versions.adam_direction import adam_direction
from graphpipe.run.versions.momentum_direction import check_momentum, momentum_direction

Direction = Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor | None]
"""Takes the options of a parameter's group and the optimizer's state of the parameter, and returns what the last update
subtracted from it, divided by the learning rate, in new memory; None before the first update."""

DIRECTIONS: Mapping[type[Optimizer], Direction] = {
    SGD: momentum_direction,
    Adam: adam_direction,
    AdamW: adam_direction,
}


def check_predictable(optimizer: Optimizer) -> None:
    """Check that the updates of an optimizer can be predicted.

    Raises:
        InvalidInput: it is of another class (a subclass may update in another way), or its options do not allow it.
    """
    kind = type(optimizer)
    if kind not in DIRECTIONS:
        known = ", ".join(optimizer_class.__name__ for optimizer_class in DIRECTIONS)
        raise InvalidInput(
            f"the weight policy 'predict' cannot predict the updates of {kind.__name__}, only those of {known}",
            where="optimizer",
            remedy="Choose one of these optimizers, or plan with weights='stash'.",
        )
    if kind is SGD:
        for group in optimizer.param_groups:
            check_momentum(group)


@torch.no_grad()
def predict(optimizer: Optimizer, parameters: Sequence[nn.Parameter], horizon: int) -> list[Tensor]:
    """Return the weights that are expected after so many more updates, in new memory.

    Args:
        optimizer: that updates the parameters, accepted by `check_predictable`.
        parameters: with their newest weights.
        horizon: updates to predict, at least 1.
    """
    direction_of = DIRECTIONS[type(optimizer)]
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    predicted: list[Tensor] = []
    for parameter in parameters:
        group = groups[id(parameter)]
        state = cast("Mapping[str, Any]", optimizer.state.get(parameter, {}))
        direction = direction_of(group, state)
        weights = parameter.detach()
        predicted.append(weights.clone() if direction is None else weights - direction.mul_(group["lr"] * horizon))
    return predicted
