"""Ranks whose models had equal shapes and weights, but other layers or another loss, trained without a word."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.run.forward_digest import digest_of_layers, digest_of_loss


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x


class Thrice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3.0 * x


Thrice.__qualname__ = "Twice"  # another version of its file


def model(*, act: type[nn.Module] = nn.Tanh, dropout: float = 0.1, eps: float = 1e-5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), act(), nn.Dropout(dropout), nn.LayerNorm(4, eps=eps))


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def double(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * (outputs - targets).square().mean()


@pytest.mark.parametrize(
    "other", [model(act=nn.ReLU), model(dropout=0.2), model(eps=1e-6), model(act=Twice), model(act=Thrice)]
)
def test_layers_are_told_apart(other: nn.Module) -> None:
    assert digest_of_layers(other) != digest_of_layers(model())


def test_the_code_of_a_forward_counts() -> None:
    assert digest_of_layers(model(act=Twice)) != digest_of_layers(model(act=Thrice))


def test_weights_do_not_count() -> None:
    torch.manual_seed(0)
    one = model()
    torch.manual_seed(1)
    assert digest_of_layers(one) == digest_of_layers(model()) == digest_of_layers(model().to("meta"))


def test_losses_are_told_apart() -> None:
    losses = [
        mean,
        double,
        lambda outputs, targets: mean(outputs, targets),
        partial(nn.functional.cross_entropy, label_smoothing=0.1),
        partial(nn.functional.cross_entropy, label_smoothing=0.2),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        gp.WeightedLoss(mean, weight=lambda targets: targets.sum()),
        gp.WeightedLoss(double, weight=lambda targets: targets.sum()),
    ]
    assert len({*map(digest_of_loss, losses)}) == len(losses)
    assert digest_of_loss(partial(mean, targets=torch.zeros(2))) == digest_of_loss(partial(mean, targets=torch.ones(2)))
