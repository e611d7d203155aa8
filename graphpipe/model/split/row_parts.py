"""Parts of an embedding by its rows: each looks up the indices in its range, and has zeros for all others.

indices  2 7 4 | 9 1 3             rows 0:5 of 10:  2 - 4 | - 1 3        rows 5:10:  - 7 - | 9 - -

The first and the last part look up what lies before and behind the table too. So an index that the table does not have
fails as in the whole layer. Where ranks exchange values in the middle of an operator, it fails on all of them.
"""

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from graphpipe.graph import ParameterSlice


@final
class RowRange(nn.Module):
    """The rows of a part: (n, ...) indices of the table -> (n, ...) indices of the part, and which are of other parts.

    An index of another part becomes 0.

    Args:
        piece: the rows that the part has.
        rows: of the whole table.
        padding_idx: of the whole table; None if there is none.
        fails_everywhere: whether every part fails for an index that the table does not have.
    """

    def __init__(
        self, piece: ParameterSlice, rows: int, padding_idx: int | None, *, fails_everywhere: bool = False
    ) -> None:
        super().__init__()
        self.start, self.stop, self.rows, self.fails_everywhere = piece.start, piece.stop, rows, fails_everywhere
        here = padding_idx is not None and piece.start <= padding_idx < piece.stop
        self.padding_idx = padding_idx - piece.start if here and padding_idx is not None else None
        """In the part; None if the part does not have this row."""

    def forward(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices in the part, and a mask that is true for those of other parts."""
        if self.fails_everywhere:
            others = ((indices >= 0) & (indices < self.start)) | ((indices >= self.stop) & (indices < self.rows))
        elif self.start == 0:
            others = indices >= self.stop
        elif self.stop == self.rows:
            others = indices < self.start
        else:
            others = (indices < self.start) | (indices >= self.stop)
        return (indices - self.start).masked_fill(others, 0), others


@final
class EmbeddingRows(nn.Module):
    """Some rows of an embedding: (n, ...) indices -> (n, ..., width), with zeros for indices of other parts."""

    def __init__(self, layer: nn.Embedding, weight: nn.Parameter, piece: ParameterSlice) -> None:
        super().__init__()
        self.weight = weight
        self.range = RowRange(piece, layer.num_embeddings, layer.padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows that this part has."""
        here, others = self.range(indices)
        found = functional.embedding(here, self.weight, padding_idx=self.range.padding_idx)
        return found.masked_fill(others[..., None], 0.0)


@final
class EmbeddingBagRows(nn.Module):
    """Some rows of an embedding bag: (n, length) indices -> (n, width), the share of these rows in sum or mean.

    A mean divides by the number of all indices of the bag, those of other parts included, but not the padding.
    """

    def __init__(self, layer: nn.EmbeddingBag, weight: nn.Parameter, piece: ParameterSlice) -> None:
        super().__init__()
        self.weight, self.mode, self.padding_idx = weight, layer.mode, layer.padding_idx
        self.range = RowRange(piece, layer.num_embeddings, layer.padding_idx)

    def forward(self, indices: Tensor) -> Tensor:
        """Return the sums or means over the rows that this part has."""
        here, others = self.range(indices)
        total = functional.embedding_bag(
            here,
            self.weight,
            mode="sum",
            per_sample_weights=others.logical_not().to(self.weight.dtype),
            padding_idx=self.range.padding_idx,
        )
        return total if self.mode == "sum" else total / self._counts(indices)

    def _counts(self, indices: Tensor) -> Tensor | int:
        # A bag of nothing but padding is 0.
        if self.padding_idx is None:
            return indices.shape[1]
        return (indices != self.padding_idx).sum(1, keepdim=True).clamp(min=1)
