"""The optimizers of the benchmark of weight policies, and their learning rates."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bench.running.learning.asynchronous_models import WIDTH

WARM_UP = 20
"""Updates until the learning rate is reached. Then it falls along half a cosine to a tenth."""


class MuonAndAdamW(Optimizer):
    """Muon for the matrices of the blocks, AdamW for embeddings, scores, norms and biases, as is usual.

    Args:
        parameters: of a stage.
        rate: of Muon, scaled as for AdamW ("match_rms_adamw"), and of AdamW.
    """

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        inside = [each for each in parameters if each.ndim == 2 and not any(size % WIDTH for size in each.shape)]
        others = [each for each in parameters if all(each is not other for other in inside)]
        self.parts: list[Optimizer] = [torch.optim.AdamW(others, lr=rate)] if others else []
        if inside:
            self.parts.append(torch.optim.Muon(inside, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
        super().__init__(parameters, {"lr": rate})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Step both."""
        for part in self.parts:
            part.step()


OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter], float], Optimizer]] = {
    "AdamW": lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate),
    "Muon": MuonAndAdamW,
    "NAdam(0.99)": lambda parameters, rate: torch.optim.NAdam(
        parameters, lr=rate, betas=(0.99, 0.999), weight_decay=0.01, decoupled_weight_decay=True
    ),
    "SGD": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
}
RATES: Mapping[str, tuple[float, ...]] = {
    "AdamW": (1e-3, 2e-3, 4e-3),
    "Muon": (4e-3, 8e-3, 1.6e-2),
    "NAdam(0.99)": (1e-3, 2e-3, 4e-3),
    "SGD": (0.05, 0.1, 0.2),
}
"""The rates that are tried in synchronous training, by optimizer."""


def at_hand() -> list[str]:
    """Return the optimizers that this version of torch has. Muon is in torch since 2.9."""
    return [name for name in OPTIMIZERS if name != "Muon" or hasattr(torch.optim, "Muon")]


def schedule(updates: int) -> Callable[[Optimizer], LambdaLR]:
    """Return a factory of learning-rate schedules for so many updates."""
    return partial(LambdaLR, lr_lambda=partial(_factor, updates=updates))


def _factor(done: int, updates: int) -> float:
    if done < WARM_UP:
        return (done + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (done - WARM_UP) / (updates - WARM_UP)))
