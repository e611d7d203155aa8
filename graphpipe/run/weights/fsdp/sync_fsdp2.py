"""Synchronisation `fsdp2`: between steps each replica holds one shard of the weights, gradients and optimizer state.

    begin: all-gather the weights | the mini-batch | reduce: reduce-scatter the gradients, drop the weights

It uses torch's `fully_shard` with one group of parameters per stage, and without its hooks around forwards. Replicas
may run different numbers of forwards (evaluation), and a stage may compute forwards again, split its backward, or
change its graph with the shapes of the inputs. Backwards here add to the gradients of the gathered weights. FSDP's
hooks then run once, around a module that computes nothing, and find the gradients there.
"""

from typing import ClassVar, final

from graphpipe.run.weights.fsdp.fsdp_stage import FsdpStage
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas, SyncTraits


@final
class Fsdp2(ReplicaSync):
    """One replica on this rank, the others on other ranks (see `FsdpStage`)."""

    traits: ClassVar = SyncTraits(shards_parameters=True, shards_optimizer=True)

    def __init__(self, replicas: StageReplicas) -> None:
        super().__init__(replicas)
        self._stage = FsdpStage(replicas)

    def begin(self) -> None:
        """Gather the weights."""
        self._stage.begin(gather_layers=True)

    def reduce(self) -> None:
        """Sum the gradients. Each replica keeps its shard, and drops the gathered weights."""
        self._stage.reduce()

    def end(self) -> None:
        """Drop the gathered weights."""
        self._stage.end()

    def publish(self) -> None:
        """Copy the whole weights and the buffers to the user's module, until the next step."""
        self._stage.publish()

    def adopt(self) -> None:
        """Copy this rank's shard of the weights, and the buffers, of the user's module."""
        self._stage.adopt()
