"""Tensors of which every rank of a group holds some rows (DTensor): the whole of one, and a rank's own rows."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphpipe.run.comm.world import translate_loss

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(tensor: Tensor) -> "TypeIs[DTensor]":
    """True for a tensor in shards."""
    # Where torch's module was never imported there is none; to import it takes 0.2 s, and few need it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; if it is in shards, all ranks that hold one must call this.

    Raises:
        PeerLost, PeerStalled: one of them is gone.
    """
    if is_sharded(tensor):
        with translate_loss("another replica"):
            return tensor.full_tensor()
    return tensor


def own(tensor: Tensor) -> Tensor:
    """Return what of a tensor is on this rank."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def counted(tensors: Iterable[Tensor], *, whole: bool) -> list[Tensor]:
    """Return what of some tensors is on this rank alone: its part of those in shards, and of the others all, or none.

    Args:
        tensors: in shards or not.
        whole: whether those that are not in shards count here.
    """
    return [own(each) for each in tensors if whole or is_sharded(each)]


def in_shards(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor, which every rank has, in shards like another's if that is and has its shape."""
    if not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

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
