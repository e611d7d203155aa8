"""Forwards that map or differentiate functions: ensembles by `torch.vmap`, forces by `torch.autograd.grad`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.equivalence.equivalence import Equivalence


class Forward(nn.Module):
    """A submodule and what a function makes of it."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], out: int) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.part, x)


def forces(part: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(part(x).sum(), x, create_graph=True)[0]


def mapped_gradient(part: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(torch.func.grad(lambda row: part(row).sum()))(x)


def mapped_rows(part: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(part)(x)


FUNCTIONS = {
    "forces": (forces, 1, "computes gradients through its submodules"),
    "a mapped gradient": (mapped_gradient, 1, r"calls 'part' inside of torch.vmap or torch.func"),
    "mapped rows": (mapped_rows, 6, r"calls 'part' inside of torch.vmap or torch.func"),
}


def check(model: nn.Module) -> Equivalence:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:2")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=4, micro_batch=2)
    return gp.check(plan, model, functional.mse_loss, x, y)


@pytest.mark.filterwarnings("ignore:.*stays whole")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_submodule_may_transform_functions(name: str) -> None:
    """Leaves that the forward made were taken for parameters that nobody trains, and wrapped tensors had no memory."""
    function, out, _ = FUNCTIONS[name]
    found = check(nn.Sequential(nn.Linear(6, 6), Forward(function, out)))
    assert found.equal, found


@pytest.mark.filterwarnings("ignore:.*stays whole")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_model_itself_is_told_to_have_a_submodule_for_it(name: str) -> None:
    function, out, reason = FUNCTIONS[name]
    with pytest.raises(gp.InvalidInput, match=reason + r".*Move that part into a submodule"):
        gp.capture(Forward(function, out), torch.randn(4, 6))


class Ensemble(nn.Module):
    """Some matrices at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 6, 6) * 0.3)
        self.centres = nn.Parameter(torch.randn(4, 6))
        self.head = nn.Linear(6 + 4, 6)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.vmap(lambda weight, row: torch.tanh(row @ weight), in_dims=(0, None))(self.weights, x)
        return self.head(torch.cat([each.mean(0), torch.cdist(x, self.centres)], 1))


def test_a_map_in_the_forward_of_the_model_is_what_it_computes() -> None:
    """As is a distance from a few points, for which torch asks how many samples there are."""
    found = check(Ensemble())
    assert found.equal, found


class Rows(nn.Module):
    """Maps rows that a parameter scales."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(6, 6), nn.Parameter(torch.rand(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: (row[:, None] * self.scale).sum(0))(self.first(x))


def test_the_rows_of_a_map_have_no_known_values() -> None:
    """`row[:, None]` was taken for a known value: a row of a small map seemed to be a tensor with data."""
    found = check(Rows())
    assert found.equal, found
