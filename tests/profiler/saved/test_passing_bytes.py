"""The memory that passes in a forward and its backward, by hand."""

import torch
from torch import Tensor

from graphpipe.profiler.saved.passing_bytes import passing_bytes

COUNT = 2**16
BYTES = 4 * COUNT


def test_what_passes_in_a_forward_and_in_its_backward() -> None:
    x = torch.randn(COUNT, requires_grad=True)
    x.grad = torch.zeros(COUNT)

    def forward() -> list[Tensor]:
        with torch.no_grad():
            one = x + 1.0
            factor = one + one * 2.0
        return [x * factor]

    passing = passing_bytes(forward, torch.device("cpu"))
    assert BYTES <= passing.forward <= BYTES + 1024  # beside the factor, which is saved, and the output
    # The gradient of x is added to what is there, after which nothing is left of it.
    assert BYTES <= passing.backward <= BYTES + 1024
