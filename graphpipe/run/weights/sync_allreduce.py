"""The engine `allreduce`: gradients are summed bucket by bucket, after the last backward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from graphpipe.run.comm.world import World
from graphpipe.run.weights.gradient_sum import sum_between_ranks, sum_copies
from graphpipe.run.weights.replica_sync import Engine


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Engine):
    """Replicas on ranks of their own, or several in this process."""

    world: World
    ranks: tuple[int, ...]
    """Of the replicas."""
    copies: Sequence[Sequence[nn.Parameter]]
    """Per parameter, those of the replicas in this process."""
    stage: str
    """Its name."""

    def begin(self) -> None:
        """Do nothing: the weights are whole."""

    def last_backward(self, roots: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        del roots
        return nullcontext()

    def reduce(self) -> None:
        """Sum the gradients."""
        if len(set(self.ranks)) > 1:
            sum_between_ranks(self.world, [copies[0] for copies in self.copies], self.ranks, self.stage)
            return
        for copies in self.copies:
            sum_copies(copies, self.stage)

    def end(self) -> None:
        """Do nothing: the weights stay whole."""

    def publish(self) -> None:
        """Do nothing: the user's module is in use itself."""

    def adopt(self) -> None:
        """Do nothing: the user's module is in use itself."""
