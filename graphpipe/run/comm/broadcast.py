"""Copies parameters and buffers between ranks, and between replicas in one process."""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from graphpipe.run.comm.world import World
from graphpipe.run.device.buckets import buckets, flatten, unflatten


def state_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module; the same order on every rank."""
    return list(chain(module.parameters(), module.buffers()))


def broadcast_tensors(world: World, tensors: Iterable[Tensor], source: int, ranks: Sequence[int] | None = None) -> None:
    """Replace the tensors on `ranks` (None: all) by rank `source`'s, in place; all ranks hold the same shapes."""
    for bucket in buckets(tensors):
        flat = flatten(bucket, world.device)
        world.broadcast(flat, source, ranks)
        if world.rank != source:
            unflatten(flat, bucket)


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the parameters and buffers of `source`."""
    with torch.no_grad():
        for theirs, own in zip(state_tensors(source), state_tensors(target), strict=True):
            own.copy_(theirs)


def copy_modes(source: nn.Module, target: nn.Module) -> None:
    """Put every submodule of `target` into the mode (training or evaluation) it has in `source`."""
    for theirs, own in zip(source.modules(), target.modules(), strict=True):
        own.training = theirs.training
