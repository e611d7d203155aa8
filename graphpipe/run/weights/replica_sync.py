"""Replica synchronisation: what keeps the replicas of one stage at the same weights.

    begin | forwards and backwards of the mini-batch ... last_backward | reduce | (the optimizer) | end

Each synchronisation has a file of its own (`sync_*.py`) and a line in `registry.py`. The rest of the package uses
only its `SyncTraits` to decide what to combine it with.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from graphpipe.run.comm.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTraits:
    """What a synchronisation does, and what it can be combined with."""

    shards_parameters: bool = False
    """Between steps each rank holds one shard of every weight, gradient and optimizer state. Its replica is then a copy
    of the user's module, and all ranks take part to gather a whole weight or gradient."""
    shards_optimizer: bool = False
    """It shards the optimizer's state itself, so `shard_optimizer` (ZeRO-1) cannot be added."""
    split_backward: bool = True
    """It works where a backward is split into an input half and a weight half (zero-bubble schedules)."""
    reduces_in_backward: bool = False
    """Ranks wait for each other inside the last backward of a mini-batch, not in `reduce`."""
    exchanges_in_tasks: bool = False
    """Ranks wait for each other inside every forward and backward, so they must all run the same tasks in one order."""
    overlaps_mini_batches: bool = False
    """It works where mini-batches follow each other without a flush: `reduce` is called after the last backward of each
    mini-batch, while forwards of the next one have run, and `begin` and `end` only around several mini-batches."""
    local_replicas: bool = False
    """It can synchronise replicas that are in one process. If it cannot, `allreduce` does so in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplicas:
    """The replicas of one stage, as one rank sees them."""

    world: World
    ranks: tuple[int, ...]
    """The rank of each replica."""
    stage: str
    """Name of the stage, for errors."""
    original: nn.Module
    """The user's module of the stage."""
    modules: tuple[nn.Module, ...]
    """Modules of the replicas on this rank. The first is `original`, or a copy if parameters are sharded."""
    parameters: tuple[tuple[nn.Parameter, ...], ...]
    """Parameters to be synchronised: for each replica on this rank all of them, in the same order. Parameters that are
    tied to other stages are not among them."""

    @property
    def spread(self) -> bool:
        """Whether each replica is on a rank of its own; otherwise all are in this process."""
        return len(set(self.ranks)) > 1


class ReplicaSync(ABC):
    """Synchronises the replicas of one stage. All ranks with a replica call each method in the same order.

    Args:
        replicas: of the stage.
    """

    traits: ClassVar[SyncTraits]

    def __init__(self, replicas: StageReplicas) -> None:
        self.replicas = replicas

    @abstractmethod
    def reduce(self) -> None:
        """Sum the gradients over the replicas. Each replica gets the sum, or its shard of the sum.

        Called after the last backward. If the replicas are in one process, it is called after the last backward of each
        replica, and must add every gradient once.
        """

    def begin(self) -> None:
        """Prepare the weights for a mini-batch."""
        return

    def begin_evaluation(self) -> None:
        """Prepare the weights for an evaluation, in which replicas may run different numbers of forwards."""
        self.begin()

    def in_task(self) -> AbstractContextManager[None]:
        """Return a context for every task, if the synchronisation `exchanges_in_tasks`."""
        return nullcontext()

    def last_backward(self, roots: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return a context for the last backward of a mini-batch.

        Args:
            roots: tensors where that backward begins.
        """
        del roots
        return nullcontext()

    def end(self) -> None:
        """Release what `begin` fetched, if it is still here."""
        return

    def publish(self) -> None:
        """Copy the current weights and buffers to the user's module, if the replica is a copy."""
        return

    def adopt(self) -> None:
        """Copy the weights and buffers of the user's module here, if the replica is a copy."""
        return
