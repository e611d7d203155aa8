"""Where two backwards differ: another operation, or an operation that returns another gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from graphpipe.model.halves.differing_operation import other_gradient, other_operation

X = torch.linspace(-1.0, 1.0, 4)
Forward = Callable[[Tensor], Tensor]


def plain(x: Tensor) -> Tensor:
    return (x.tanh() * 2.0).exp()


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (plain, ""),
        (lambda x: (x.relu() * 2.0).exp(), "ReluBackward0 is where TanhBackward0 was"),
        (lambda x: (x * 2.0).exp(), "AccumulateGrad is where TanhBackward0 was"),
    ],
)
def test_another_operation_is_named(forward: Forward, named: str) -> None:
    edges = [[get_gradient_edge(call(X.clone().requires_grad_()))] for call in (plain, forward)]
    assert other_operation(*edges).removeprefix("torch::autograd::") == named


@pytest.mark.parametrize(("factor", "named"), [(2.0, ""), (3.0, "MulBackward0")])
def test_the_operation_with_another_number_is_named(factor: float, named: str) -> None:
    """The gradient that reaches `tanh` differs too, but `tanh` does with it what it did before."""
    x = X.clone().requires_grad_()
    one, other = x.tanh() * 2.0 + 1.0, x.tanh() * factor + 1.0
    runs = [
        lambda root=root: torch.autograd.grad(root, x, torch.ones_like(root), retain_graph=True)
        for root in (one, other)
    ]
    assert other_gradient([get_gradient_edge(one)], [get_gradient_edge(other)], *runs) == named
