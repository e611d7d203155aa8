"""Distances to a codebook: Mimi was refused, because torch asks whether there are more than 25 rows to compare."""

import torch
from torch import Tensor, nn

from graphpipe.model.capture.capture import capture
from graphpipe.model.cdist_mode import with_mode


class Codes(nn.Module):
    """Distances of each row of each sample to those of a codebook."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first, self.book, self.last = nn.Linear(4, 4), nn.Linear(4, rows), nn.Linear(rows, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cdist(self.first(x).flatten(0, 1), self.book.weight).unflatten(0, (-1, 3)))


def test_distances_to_a_large_codebook_do_not_ask_for_the_number_of_samples() -> None:
    assert capture(Codes(26), torch.randn(4, 3, 4)).order[-1] == "last"


def test_the_named_mode_is_the_one_that_torch_takes_for_a_large_codebook() -> None:
    x, book = torch.randn(3, 4), torch.randn(26, 4)
    assert torch.equal(torch.cdist(x, book), torch.cdist(x, book, **with_mode((x, book), {})))
    assert with_mode((x, book[:25]), {}) == {}
    assert with_mode((x, book), {"compute_mode": "donot_use_mm_for_euclid_dist"}) == {
        "compute_mode": "donot_use_mm_for_euclid_dist"
    }
