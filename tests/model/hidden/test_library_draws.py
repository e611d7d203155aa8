"""Layers that a draw of Python's or NumPy's left out at the capture were left out in every step, without a word."""

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp


class Dropping(nn.Module):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw, self.layers = draw, nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x if self.draw() < 0.5 else torch.tanh(layer(x))
        return x


@pytest.mark.timeout(60)
@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.rand()], ids=["python", "numpy"])
def test_a_followed_forward_that_draws(draw: Callable[[], float]) -> None:
    model, before = nn.Sequential(Dropping(draw), nn.Linear(4, 2)), random.getstate()
    with pytest.warns(UserWarning, match=r"the forward of '0' draws random numbers .*opaque=\['0'\]"):
        first = gp.capture(model, torch.randn(4, 4), split=["0"])
    assert random.getstate() == before
    draw()
    with pytest.warns(UserWarning, match="never trained"):
        assert gp.capture(model, torch.randn(4, 4), split=["0"]) == first


@pytest.mark.timeout(60)
def test_a_submodule_that_stays_whole_draws_in_training() -> None:
    model, before = nn.Sequential(Dropping(random.random), nn.Linear(4, 2)), random.getstate()
    with warnings.catch_warnings(action="error"):
        gp.capture(model, torch.randn(4, 4), opaque=["0"])
    assert random.getstate() == before
