"""A forward that counts its calls, or keeps a mean, did so for each micro-batch without a word."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from tests.support.programs.divided_steps import WIDE, model, step


class Counting(nn.Module):
    """Divides by the number of its calls."""

    def __init__(self, *, reads: bool, in_buffer: bool) -> None:
        super().__init__()
        self.reads, self.in_buffer, self.calls = reads, in_buffer, 1
        self.register_buffer("seen", torch.ones(()))

    def forward(self, y: Tensor) -> Tensor:
        self.calls += 1
        if not self.in_buffer:
            return y / self.calls if self.reads else y
        self.seen = self.seen + 1
        return y / self.seen if self.reads else y


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("mix", "said"),
    [
        (Counting(reads=True, in_buffer=True), r"changes the buffer '2.mix.seen' in each call, and computes with it"),
        (Counting(reads=True, in_buffer=False), "changes an attribute in each call, and computes with it"),
        (Counting(reads=False, in_buffer=True), r"changes the buffer '2.mix.seen' in each call\. "),
        (spectral_norm(nn.Linear(WIDE, WIDE)), "changes the buffers '2.mix.parametrizations.weight.0._u', "),
    ],
)
def test_what_is_kept_between_micro_batches_is_said(mix: nn.Module, said: str) -> None:
    with pytest.warns(UserWarning, match=f"the forward of stage 's0' {said}"):
        step(model(mix), "3", 4)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "mix", [nn.BatchNorm1d(WIDE), nn.Dropout(), Counting(reads=False, in_buffer=False), torch.randn_like]
)
def test_norms_random_numbers_and_counters_that_nobody_reads_are_not(mix: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model(mix), "3", 4)
