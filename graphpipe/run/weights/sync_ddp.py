"""Synchronisation `ddp`: torch's DistributedDataParallel sums gradients while the last backward still runs.

Only its reducer is used. Forwards bypass it because several micro-batches run forward before the first backward.
Right before the last backward, `prepare_ddp_backward` prepares the reducer, because the gradients are then complete.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from graphpipe.model.torch_private import prepare_ddp_backward
from graphpipe.run.weights.gradient_sum import sparse_gradient
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas, SyncTraits


@final
class Ddp(ReplicaSync):
    """One replica on this rank, the others on other ranks.

    If a parameter has no gradient on any rank, its gradient stays None. If it lacks one only here, it counts as zero.
    """

    traits: ClassVar = SyncTraits(split_backward=False, reduces_in_backward=True)

    def __init__(self, replicas: StageReplicas) -> None:
        super().__init__(replicas)
        group = replicas.world.group(replicas.ranks)
        # DDP warns where all parameters are used, so one is not.
        unused = nn.Parameter(torch.zeros(1, device=replicas.world.device))
        with replicas.world.waiting_for(replicas.ranks):
            self._ddp = DistributedDataParallel(
                nn.ParameterList([*replicas.parameters[0], unused]),
                process_group=group,
                init_sync=False,  # the runtime aligns the replicas
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )
        self._ddp.register_comm_hook(group, _sum)

    @contextmanager
    def last_backward(self, roots: Sequence[Tensor]) -> Generator[None]:
        """Sum the gradients while the backward runs, each bucket as soon as it is complete."""
        with self.replicas.world.waiting_for(self.replicas.ranks):
            prepare_ddp_backward(self._ddp, roots)
            try:
                yield
            except NotImplementedError as error:  # a bucket has no room for it
                if "Sparse" not in str(error):
                    raise
                raise sparse_gradient(self.replicas.stage) from None

    def reduce(self) -> None:
        """Do nothing, because the last backward has waited for the sums."""


def _sum(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # Without a hook, DDP divides by the number of replicas. Here losses are weighted by their share instead.
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _first(done: torch.futures.Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
