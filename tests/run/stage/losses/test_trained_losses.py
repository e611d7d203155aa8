"""A loss with trainable parameters. They were never trained, and their gradients never cleared."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss

import graphpipe as gp
from graphpipe.errors import InvalidInput
from tests.support.programs.plain_training import cut_plan, distance


class Uncertain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).mean() * torch.exp(-self.log_variance) + self.log_variance


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)


def hidden() -> dict[str, Any]:
    loss, scale = Uncertain(), torch.ones((), dtype=torch.float64, requires_grad=True)
    centres = nn.Parameter(torch.randn(1, 2, dtype=torch.float64))
    return {
        "closure": lambda o, t: loss(o, t),
        "method": loss.forward,
        "leaf": lambda o, t: mse_loss(o, t) * scale,
        "computed": lambda o, t: mse_loss(o * scale.exp(), t),
        "centres": lambda o, t: (1 - cosine_similarity(o, centres)).mean() + 0 * t.sum(),
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", hidden())
def test_hidden_parameters_are_refused_in_the_first_step(name: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"loss_fn: its result depends on a trainable tensor.* Put the loss into the"
    ):
        distance(model(), [batch()], hidden()[name])


@pytest.mark.timeout(60)
def test_a_module_is_refused_before() -> None:
    for loss in (Uncertain(), gp.WeightedLoss(Uncertain(), weight=len)):
        with pytest.raises(InvalidInput, match="Uncertain has the trainable parameter 'log_variance'"):
            distance(model(), [batch()], loss)
    assert distance(model(), [batch()], Uncertain().requires_grad_(False)) < 1e-12


class WithLoss(nn.Module):
    """What the error advises."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss = model(), OfSamples()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.model(x), target)


class OfSamples(Uncertain):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).mean(1) * torch.exp(-self.log_variance) + self.log_variance


@pytest.mark.timeout(60)
def test_the_remedy_works() -> None:
    inputs, targets = batch()
    batches = [({"x": inputs, "target": targets}, None)] * 3
    assert distance(WithLoss(), batches, lambda losses, _: losses.mean()) < 1e-12


@pytest.mark.timeout(60)
def test_a_norm_of_the_weights_of_the_model() -> None:
    """Their gradients arrive where the model's own do."""
    one = model()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return mse_loss(output, target) + 0.1 * sum((each**2).sum() for each in holder[0].parameters())

    holder = [one]
    x, y = batch()
    plan = cut_plan(gp.capture(one.double(), x), batch_size=8, micro_batch=2)
    with gp.Pipeline(plan, one, loss) as pipeline:
        pipeline.step(x, y)
        found = pipeline.gradients()
    one.zero_grad()
    loss(one(x), y).backward()
    for name, parameter in one.named_parameters():
        gradient = found[name]
        assert gradient is not None
        assert parameter.grad is not None
        assert torch.allclose(gradient, parameter.grad, atol=1e-12)
