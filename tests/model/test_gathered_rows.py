"""Rows that a forward takes along a dimension, as PP-DocLayoutV2 sorts its boxes."""

import torch
from torch import Tensor, nn

from graphpipe.model.capture.capture import capture


class Chosen(nn.Module):
    """Sorts the rows of each sample, as PP-DocLayoutV2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        order = x.sum(-1).argsort(1)
        return self.last(torch.take_along_dim(x, order[..., None].expand(-1, -1, 4), dim=1))


def test_rows_taken_along_a_dimension_do_not_fix_the_number_of_samples() -> None:
    """`torch.take_along_dim` makes a plain number of it, although it has nothing to repeat here."""
    assert capture(Chosen(), torch.randn(4, 3, 4)).order == ("first", "last")
