"""Synchronisation `allreduce`: gradients are summed bucket by bucket after the last backward."""

from typing import ClassVar, final

from graphpipe.run.weights.gradient_sum import sum_between_ranks, sum_copies
from graphpipe.run.weights.replica_sync import ReplicaSync, SyncTraits


@final
class AllReduce(ReplicaSync):
    """Replicas on ranks of their own, or all in this process."""

    traits: ClassVar = SyncTraits(local_replicas=True, overlaps_mini_batches=True)

    def reduce(self) -> None:
        """Sum the gradients."""
        replicas = self.replicas
        if replicas.spread:
            sum_between_ranks(replicas.world, replicas.parameters[0], replicas.ranks, replicas.stage)
            return
        for copies in zip(*replicas.parameters, strict=True):
            sum_copies(copies)
