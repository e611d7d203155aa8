"""The memory that passes in a forward and its backward, by hand."""

import torch
from torch import Tensor

from graphpipe.profiler.saved.passing_bytes import passing_bytes

COUNT = 2**16
BYTES = 4 * COUNT


def test_what_passes_in_a_forward_and_in_its_backward() -> None:
    x = torch.randn(COUNT, requires_grad=True)
    x.grad = torch.zeros(COUNT)

    roots: list[Tensor] = []

    def forward() -> None:
        with torch.no_grad():
            one = x + 1.0
            factor = one + one * 2.0
        roots.append(x * factor)

    gradient = torch.ones(COUNT)
    first, second = passing_bytes([forward, lambda: roots[0].backward(gradient)], torch.device("cpu"))
    assert BYTES <= first.over_end <= BYTES + 1024  # beside the factor, which is saved, and the output
    # The gradient of x is added to what is there, after which nothing is left of it.
    assert BYTES <= second.over_start <= BYTES + 1024
