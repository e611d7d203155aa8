"""Submodules that no tracer follows are kept whole by themselves: advice to keep them whole did not help."""

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from tests.support.programs.plain_training import distance

pytestmark = pytest.mark.timeout(60)


class Child(nn.Module):
    def __init__(self, forward: Callable[["Child", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.computes = nn.Linear(6, 6), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.computes(self, x)


def through_numpy(child: Child, x: Tensor) -> Tensor:
    return child.layer(x) + torch.from_numpy(x.detach().numpy() ** 2)


def forces(child: Child, x: Tensor) -> Tensor:
    """As models of molecules, whose forces are gradients of an energy."""
    at = x if x.requires_grad else x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(child.layer(at).square().sum(), at, create_graph=True)
    return child.layer(x) + gradient


def energy(child: Child, row: Tensor) -> Tensor:
    return child.layer(row).square().sum()


def per_sample_gradients(child: Child, x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(partial(energy, child)))(x)


def sparse(child: Child, x: Tensor) -> Tensor:
    return child.layer(torch.sparse.mm(torch.eye(x.shape[0], dtype=x.dtype).to_sparse(), x))


def jagged(child: Child, x: Tensor) -> Tensor:
    nested = torch.nested.as_nested_tensor(child.layer(x), layout=torch.jagged)
    return torch.nested.to_padded_tensor(nested, 0.0)


def counted_loop(child: Child, x: Tensor) -> Tensor:
    y = child.layer(x)
    for _ in range(int((x[0, 0] * 0).item()) + 2):
        y = y.tanh()
    return y


@pytest.mark.parametrize(
    "forward",
    [through_numpy, forces, per_sample_gradients, sparse, jagged, counted_loop],
    ids=lambda each: each.__name__,
)
def test_a_child_that_cannot_be_traced_is_trained(forward: Callable[[Child, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Child(forward), nn.Linear(6, 3))
    batch = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    assert distance(model, [batch] * 2, nn.functional.cross_entropy) < 1e-12


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        if x.sum() > 0:
            y = x * 2
        return y


@pytest.mark.filterwarnings("ignore:.*mixes the samples")
@pytest.mark.parametrize("scripted", [False, True])
def test_a_branch_that_all_samples_decide_is_refused(scripted: bool) -> None:
    """Each micro-batch took a branch of its own, without a word."""
    first = nn.Linear(6, 6, bias=False)
    nn.init.eye_(first.weight)
    model = nn.Sequential(first, torch.jit.script(Doubled()) if scripted else Doubled(), nn.Linear(6, 3))
    x = torch.tensor([1.0, 1.0, -3.0, -3.0] * 2)[:, None].repeat(1, 6)
    graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, micro_batch=4)
    refusal = pytest.raises(gp.InvalidInput, match=r"mixes the samples of a batch \(sum\)")
    with gp.Pipeline(plan, model, nn.functional.cross_entropy) as pipe, refusal:
        pipe.step(x, torch.randint(3, (8,)))


def test_300_modules_inside_each_other_are_captured() -> None:
    """Python copies and traces them with more functions inside each other than it allows."""
    model: nn.Module = nn.Linear(6, 6)
    for _ in range(300):
        model = nn.Sequential(model)
    before = sys.getrecursionlimit()
    assert [op.parameters for op in gp.capture(model, torch.randn(4, 6)).ops] == [
        tuple(f"{'0.' * 300}{name}" for name in ("bias", "weight"))
    ]
    assert sys.getrecursionlimit() == before
