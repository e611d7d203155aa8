"""Loops over samples: joined again at once, as in LLaVA, or refused. They once fixed the number of samples."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture


class Listed(nn.Module):
    """Computes something from single samples, between two linear layers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def test_a_list_of_all_samples_that_is_joined_again_is_followed() -> None:
    graph = capture(Listed(lambda x: torch.cat(list(x), dim=0).reshape(x.shape)), torch.randn(2, 3, 4))
    assert graph.order == ("first", "last")


@pytest.mark.parametrize(
    "between",
    [
        lambda x: torch.cat(list(x)[:2], dim=0).reshape(-1, 3, 4),
        lambda x: torch.cat([*reversed(list(x))], dim=0).reshape(x.shape),
        lambda x: torch.cat([row * 2 for row in x], dim=0).reshape(x.shape),
        lambda x: torch.stack(list(x)),
        lambda x: x + next(iter(x)),
        lambda x: x + sum(F.interpolate(x, size=(row,)) for row in x.sum((1, 2)).long()),  # as in ViLT
    ],
)
def test_what_a_loop_does_with_single_samples_is_refused(between: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InvalidInput, match="loops over the samples of a mini-batch, whose number is not known"):
        capture(Listed(between), torch.randn(2, 3, 4))


def test_a_forward_that_fixes_the_number_of_samples_is_refused() -> None:
    with pytest.raises(InvalidInput, match="or for another number of samples"):
        capture(Listed(lambda x: x / len(x)), torch.randn(2, 3, 4))
