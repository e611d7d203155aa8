"""In-place operators of an exported graph become functions where nobody else sees what they write."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.capture.module_graph.writes import replace_plain_writes, with_row, with_slice
from graphpipe.model.torch_private import is_mutable


def buckets(x: Tensor) -> Tensor:
    """Add in place twice, as T5 counts its buckets of positions; the old value is read before."""
    found = x * 2
    before = found.sin()
    found += x
    found.masked_fill_(x > 0, 7.0)
    return before + found


def through_a_view(x: Tensor) -> Tensor:
    """Write into a view, which changes another tensor."""
    found = x * 2
    found[0].add_(1)
    return found


def of_another_type(x: Tensor) -> Tensor:
    """Write floating-point numbers into a tensor of lower precision."""
    found = (x * 2).half() + 0
    found += x
    return found


class Forward(nn.Module):
    """A module with a function as its forward."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(("function", "left"), [(buckets, 0), (through_a_view, 1), (of_another_type, 1)])
def test_only_plain_writes_are_replaced_and_the_result_is_the_same(
    function: Callable[[Tensor], Tensor], left: int
) -> None:
    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    module = torch.export.export(Forward(function), (x,)).graph_module
    replace_plain_writes(module)
    assert sum(is_mutable(node.target) for node in module.graph.nodes) == left
    torch.testing.assert_close(module(x)[0], function(x))


class Layered(nn.Module):
    """A layer, a function of its output, and another layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.function(self.one(x)))


def past_its_gradient(x: Tensor) -> Tensor:
    """Clamp the values and keep the gradient, as `torch.distributions.Gamma` does."""
    x.detach().clamp_(min=0)
    return x


def without_gradients(x: Tensor) -> Tensor:
    """Do the same in a block."""
    with torch.no_grad():
        x.clamp_(min=0)
    return x


def through_data(x: Tensor) -> Tensor:
    """Do the same in a column."""
    x.data[:, 0] = 0.0
    return x


@pytest.mark.parametrize("function", [past_its_gradient, without_gradients, through_data])
def test_a_write_past_a_gradient_is_refused_or_stays_whole(function: Callable[[Tensor], Tensor]) -> None:
    """The captured graph computed with the written values, which have no gradient: the layer was not trained."""
    with pytest.raises(gp.InvalidInput, match="the model itself, writes into a value past its gradient"):
        gp.capture(Layered(function), torch.randn(4, 4))
    graph = gp.capture(nn.Sequential(nn.Linear(4, 4), Layered(function)), torch.randn(4, 4))
    assert [op.name for op in graph.ops] == ["0", "1"]


def detached_copy(x: Tensor) -> Tensor:
    """Write into a copy."""
    return x + x.detach().clone().clamp_(min=0)


def detached_for_good(x: Tensor) -> Tensor:
    """Write into values whose gradient nobody wants."""
    return x.detach().clamp_(min=0)


def copy_in_a_block(x: Tensor) -> Tensor:
    """Write into what the block has made."""
    with torch.no_grad():
        doubled = x * 2
        doubled.clamp_(min=0)
    return x + doubled


@pytest.mark.parametrize("function", [detached_copy, detached_for_good, copy_in_a_block])
def test_other_writes_without_a_gradient_are_followed(function: Callable[[Tensor], Tensor]) -> None:
    graph = gp.capture(Layered(function), torch.randn(4, 4))
    assert {"one", "two"} <= {op.name for op in graph.ops}


def test_a_write_into_a_part_of_a_complex_tensor_has_a_gradient() -> None:
    """`slice_scatter` and `select_scatter` of PyTorch 2.13 have none for complex tensors."""
    tensor = torch.randn(3, 4, dtype=torch.cdouble, requires_grad=True)
    values = torch.randn(3, 2, dtype=torch.cdouble, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: with_slice(a, b, 1, 1, 3), (tensor, values))
    assert torch.autograd.gradcheck(lambda a, b: with_row(a, b[:, 0], 1, 2), (tensor, values))
    written = tensor.detach().clone()
    written[:, 1:3] = values.detach()
    assert torch.equal(with_slice(tensor, values, 1, 1, 3), written)
