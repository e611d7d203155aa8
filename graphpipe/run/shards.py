"""Tensors of which every rank of a group holds some rows (DTensor): the whole of one, and a rank's own rows."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from graphpipe.run.world import translate_loss


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; if it is in shards, all ranks that hold one must call this.

    Raises:
        PeerLost, PeerStalled: one of them is gone.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    with translate_loss("another replica"):
        return tensor.full_tensor()


def own(tensor: Tensor) -> Tensor:
    """Return what of a tensor is on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def counted(tensors: Iterable[Tensor], *, whole: bool) -> list[Tensor]:
    """Return what of some tensors is on this rank alone: its part of those in shards, and of the others all, or none.

    Args:
        tensors: in shards or not.
        whole: whether those that are not in shards count here.
    """
    return [
        each.to_local() if isinstance(each, DTensor) else each for each in tensors if whole or isinstance(each, DTensor)
    ]


def is_sharded(tensor: Tensor) -> bool:
    """True for a tensor in shards."""
    return isinstance(tensor, DTensor)


def in_shards(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor, which every rank has, in shards like another's if that is and has its shape."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    place = value.to(like.device)
    return distribute_tensor(place, like.device_mesh, like.placements, src_data_rank=None)


def publish(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the whole parameters, and the buffers, of `source`, which may be in shards."""
    with torch.no_grad():
        for theirs, mine in zip(source.parameters(), target.parameters(), strict=True):
            mine.copy_(whole(theirs))
        for theirs, mine in zip(source.buffers(), target.buffers(), strict=True):
            mine.copy_(theirs)


def adopt(target: nn.Module, source: nn.Module) -> None:
    """Give `target`, which may be in shards, this rank's part of `source`."""
    with torch.no_grad():
        for theirs, mine in zip(source.parameters(), target.parameters(), strict=True):
            mine.copy_(in_shards(theirs, mine))
        for theirs, mine in zip(source.buffers(), target.buffers(), strict=True):
            mine.copy_(theirs)
