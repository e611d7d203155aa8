"""Compiled modules were run eagerly without a word."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from tests.support.programs.plain_training import cut_plan


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


def model() -> nn.Sequential:
    return nn.Sequential(Block(), nn.Linear(6, 2))


def whole() -> nn.Module:
    return torch.compile(model())  # type: ignore[return-value]


def method() -> nn.Module:
    found = model()
    found[0].forward = torch.compile(found[0].forward)
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "words"),
    [(whole, r"is what torch\.compile returns.*model\.compile\(\)"), (method, r"the forward of '0' is compiled")],
)
def test_it_is_refused_by_name(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        gp.capture(make(), torch.randn(4, 6))
    plan = cut_plan(gp.capture(model(), torch.randn(4, 6)), batch_size=4, micro_batch=2)
    with pytest.raises(InvalidInput, match=words):
        gp.Pipeline(plan, make(), nn.functional.cross_entropy)
