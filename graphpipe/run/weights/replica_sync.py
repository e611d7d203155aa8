"""The data-parallel engine: what keeps the replicas of one stage, each on a rank of its own, at the same weights.

    begin | forwards and backwards of the mini-batch ... last_backward | reduce | (the optimizer) | end

Where all replicas of a stage are in one process there is nothing to keep together: their gradients are added there,
whatever the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

from torch import Tensor

from graphpipe.errors import InvalidInput, nearest

EngineName = Literal["allreduce", "ddp", "fsdp2"]
ENGINES: tuple[str, ...] = get_args(EngineName)


class Engine(ABC):
    """Of one stage on one rank; the ranks with a replica of the stage call its methods alike."""

    @abstractmethod
    def begin(self) -> None:
        """Have the whole weights here, before a mini-batch."""

    @abstractmethod
    def last_backward(self, roots: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return what to be inside of during the last backward of a mini-batch, which begins at `roots`."""

    @abstractmethod
    def reduce(self) -> None:
        """Sum the gradients over the replicas, after the last backward: each has the sum, or its shard of it."""

    @abstractmethod
    def end(self) -> None:
        """Let go of what `begin` fetched, if it is still here."""

    @abstractmethod
    def publish(self) -> None:
        """Give the user's module the weights and buffers of now, if it does not hold them itself."""

    @abstractmethod
    def adopt(self) -> None:
        """Take over the weights and buffers of the user's module, if they are not in use themselves."""


def check_engine(name: str, *, shard_optimizer: bool, section: str = "") -> None:
    """Check the name of an engine, and whether the optimizer's state can be sharded beside it.

    Args:
        name: of the engine.
        shard_optimizer: whether replicas share out the optimizer's state.
        section: what errors put before the names of these two.

    Raises:
        InvalidInput: there is none of this name (the nearest is given), or it shards the state itself.
    """
    if name not in ENGINES:
        raise InvalidInput(f"unknown engine '{name}'", where=f"{section}engine", remedy=nearest(name, list(ENGINES)))
    if shard_optimizer and name == "fsdp2":
        raise InvalidInput(
            "is true, and engine 'fsdp2' shards the optimizer's state itself",
            where=f"{section}shard_optimizer",
            remedy="Leave it out, or choose engine='allreduce' or 'ddp'.",
        )
