"""In-place operators of an exported graph become functions where nobody else sees what they write."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.writes import replace_plain_writes
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
