"""Which rows of a mini-batch one rank reads.

mini-batch of 8, the image tower on rank 0, the text tower on ranks 1 and 2, the head on rank 3

    rank    pixels     tokens     targets
    0       0 .. 7     -          -
    1       -          0 .. 3     -
    2       -          4 .. 7     -
    3       -          -          0 .. 7
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphpipe.graph import InputLayout
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.tensor_tree import map_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The rows of a mini-batch that the stages of one rank consume: of each model input, and of the targets."""

    size: int
    """Number of samples in the whole mini-batch."""
    inputs: Mapping[str, Sequence[int]]
    """Positions in the mini-batch by name of the input, ascending. An input that this rank does not read is left
    out."""
    targets: Sequence[int] = ()
    """Positions of the targets that the loss reads on this rank, ascending. Empty if it computes no loss."""
    layout: InputLayout | None = None
    """Of the model's inputs. None: all of them are tensors."""

    @property
    def rows(self) -> Sequence[int]:
        """The positions of which this rank reads anything, ascending."""
        return sorted({*self.targets, *(row for rows in self.inputs.values() for row in rows)})

    def cut(self, samples: Sequence[int], inputs: Inputs, targets: Any = None) -> BatchShare:
        """Return this rank's share of a whole mini-batch.

        Args:
            samples: numbers that identify the samples of the mini-batch, as in `BatchShare`.
            inputs: of the whole mini-batch, as for `Pipeline.step`.
            targets: a tree of tensors with one row for each sample.
        """
        nested = self.layout if self.layout is not None and self.layout.parts else None
        named = inputs if nested is None else name_inputs(nested, inputs)
        return BatchShare(
            samples=samples,
            inputs={name: named[name][[*rows]] for name, rows in self.inputs.items()},
            targets=map_tensors(targets, lambda each: each[[*self.targets]]) if self.targets else None,
        )

    def held(self, rows: SampleRange, positions: Sequence[int]) -> SampleRange:
        """Return where some samples of the mini-batch are among the given positions, which contain all of them."""
        first = bisect_left(positions, rows.start)
        return SampleRange(first, first + len(rows))
