"""Which optimizers tie the updates of numbers together, and the warnings where a pipeline spreads these over ranks.

Prodigy and D-Adaptation trained other weights on two ranks than on one, and nothing said so: each rank estimated a step
size of its own.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from graphpipe.run.weights.tied_updates import Tie, tie_of, warn_of_tied_updates
from graphpipe.run.weights.weight_update import OptimizerGroup, WeightUpdate


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class OneRate(optim.Optimizer):
    """SGD whose rate falls with the norm of all gradients, and which keeps values of its own beside the groups."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.limit = 1.0

    def step(self, closure: Any = None) -> Any:
        gradients = [each.grad for group in self.param_groups for each in group["params"] if each.grad is not None]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.data -= group["lr"] * each.grad * (self.limit / norm)


class Noisy(optim.SGD):
    """SGD with noise of its own in each update."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each += 1e-3 * torch.randn_like(each)


@pytest.mark.parametrize(
    ("make", "tie"),
    [
        (partial(optim.SGD, lr=0.1, momentum=0.9), "numbers"),
        (optim.AdamW, "numbers"),
        (optim.Adagrad, "numbers"),  # It has state before its first step.
        (partial(Noisy, lr=0.1), "numbers"),
        (optim.Adafactor, "parameters"),
        (OneRate, "everything"),
        (optim.LBFGS, None),  # It steps with a closure only.
    ],
)
def test_what_an_optimizer_updates_together(make: Callable[..., optim.Optimizer], tie: Tie | None) -> None:
    model = layers()
    optimizer, before = make(model.parameters()), [each.detach().clone() for each in model.parameters()]
    draw = torch.get_rng_state()
    assert tie_of(optimizer) == tie
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), draw)
    assert all("step" not in state or state["step"] == 0 for state in optimizer.state.values())


def test_matrices_that_muon_updates_as_a_whole() -> None:
    assert tie_of(optim.Muon([each for each in layers().parameters() if each.ndim == 2])) == "parameters"


def test_an_optimizer_whose_schedule_has_replaced_its_step() -> None:
    optimizer = OneRate(layers().parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    assert tie_of(optimizer) == "everything"
    assert schedule.last_epoch == 0


def warned(make: Callable[..., optim.Optimizer], names: list[str], elsewhere: set[str]) -> list[str]:
    """Return the warnings on a rank that updates parameters of these names, where others update others."""
    group = OptimizerGroup(named=[*zip(names, layers().parameters(), strict=False)])
    update = WeightUpdate.of([group], lambda own: make(own), None, None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_tied_updates(update, {*names} | elsewhere)
    return [str(each.message) for each in found]


def test_only_what_is_spread_is_warned_of() -> None:
    whole, sliced = ["0.weight", "0.bias"], ["0.weight[0:16]", "0.bias"]
    (warning,) = warned(OneRate, whole, {"2.weight"})
    assert warning.startswith("OneRate updates all of its parameters together")
    assert warned(OneRate, whole, set()) == []
    (warning,) = warned(optim.Adafactor, sliced, set())
    assert "ranks hold slices such as '0.weight[0:16]'" in warning
    assert warned(optim.Adafactor, whole, {"2.weight"}) == []
    assert warned(optim.AdamW, sliced, {"2.weight"}) == []
