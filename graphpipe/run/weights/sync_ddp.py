"""The engine `ddp`: torch's DistributedDataParallel sums gradients while the last backward still runs.

Only its reducer is used: forwards go past it, because those of several micro-batches come before the first backward,
and so the reducer is told right before the last backward that now the gradients are complete.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from graphpipe.model.torch_private import expect_gradients
from graphpipe.run.comm.world import World
from graphpipe.run.weights.replica_sync import Engine


@final
class Ddp(Engine):
    """One replica on this rank, the others on other ranks.

    A parameter without gradient everywhere keeps none; without one here, it counts as zero.

    Args:
        world: this rank.
        ranks: of the replicas.
        parameters: of the replica here; at least one is trainable.
    """

    def __init__(self, world: World, ranks: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        self._world, self._ranks = world, tuple(ranks)
        group = world.group(ranks)
        unused = nn.Parameter(torch.zeros(1, device=world.device))  # if all were used, DDP would advise to say so
        with world.waiting_for(ranks):
            self._ddp = DistributedDataParallel(
                nn.ParameterList([*parameters, unused]),
                process_group=group,
                init_sync=False,  # the runtime aligns the replicas
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )
        self._ddp.register_comm_hook(group, _sum)

    def begin(self) -> None:
        """Do nothing: the weights are whole."""

    @contextmanager
    def last_backward(self, roots: Sequence[Tensor]) -> Generator[None]:
        """Sum what has been added up, each bucket as soon as it is complete; all are at the end."""
        with self._world.waiting_for(self._ranks):
            expect_gradients(self._ddp, roots)
            yield

    def reduce(self) -> None:
        """Do nothing: the last backward has waited for the sums."""

    def end(self) -> None:
        """Do nothing: the weights stay whole."""

    def publish(self) -> None:
        """Do nothing: the user's module is in use itself."""

    def adopt(self) -> None:
        """Do nothing: the user's module is in use itself."""


def _sum(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # Without a hook, DDP divides by the number of replicas: here losses are weighed by their share instead.
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _first(done: torch.futures.Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
