"""Gradients of a balance loss that a backward adds grew with the number of micro-batches: 265 % off with four."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from tests.support.programs.plain_training import distance


class Inject(torch.autograd.Function):
    """Adds the gradient of a loss to a backward, as torchtitan and Megatron do for experts."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, balance: Tensor) -> Tensor:
        ctx.save_for_backward(balance)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], 0.1 * torch.ones_like(ctx.saved_tensors[0])


class Sparse(torch.autograd.Function):
    """Adds to the gradient of a value."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] + 1e-3 * ctx.saved_tensors[0].sign()


class Scale(torch.autograd.Function):
    """Adds nothing."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0]


class Layer(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.gate, self.out = change, nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * self.change(self.gate(x))


def balanced(p: Tensor) -> Tensor:
    return Inject.apply(p, p.softmax(-1).mean(0).square().sum())


def model(change: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), Layer(change), nn.Linear(6, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [balanced, Sparse.apply], ids=["balance", "added"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_they_are_refused_in_the_first_step(change: Any, cut: int) -> None:
    with pytest.raises(InvalidInput, match="gets a gradient although the loss gives none"):
        distance(model(change), [batch()], nn.functional.cross_entropy, cut=cut)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [balanced, Sparse.apply, Scale.apply], ids=["balance", "added", "scaled"])
def test_the_remedy_works_and_others_are_trained(change: Any) -> None:
    whole = () if change == Scale.apply else ("1",)
    assert distance(model(change), [batch()] * 2, nn.functional.cross_entropy, whole_batch=whole) < 1e-12
