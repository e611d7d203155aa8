"""Sharded tensors (DTensor): every rank of a group has some rows. Gathers whole tensors, and finds a rank's rows."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphpipe.run.meeting.peer_loss import translate_loss

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(tensor: Tensor) -> "TypeIs[DTensor]":
    """True for a sharded tensor."""
    # If torch's module was never imported, no tensor is sharded. Importing it takes 0.2 s, and few runs need it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. If it is sharded, all ranks with a shard must call this.

    Raises:
        PeerLost, PeerStalled: one of these ranks has died or stalled.
    """
    if is_sharded(tensor):
        with translate_loss("another replica"):
            return tensor.full_tensor()
    return tensor


def own(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_parts(tensors: Iterable[Tensor], *, whole: bool) -> list[Tensor]:
    """Return this rank's shards of tensors and, if asked for, also the tensors that are not sharded.

    Args:
        tensors: sharded or not.
        whole: include the tensors that are not sharded.
    """
    return [own(tensor) for tensor in tensors if whole or is_sharded(tensor)]


def in_shards(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor, which every rank has whole, sharded like `like` if that is sharded and has the same shape."""
    if not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    place = value.to(like.device)
    return distribute_tensor(place, like.device_mesh, like.placements, src_data_rank=None)


def publish(source: nn.Module, target: nn.Module) -> None:
    """Copy the whole parameters and the buffers of `source`, which may be sharded, to `target`."""
    with torch.no_grad():
        for theirs, mine in zip(source.parameters(), target.parameters(), strict=True):
            mine.copy_(whole(theirs))
        for theirs, mine in zip(source.buffers(), target.buffers(), strict=True):
            mine.copy_(theirs)


def adopt(target: nn.Module, source: nn.Module) -> None:
    """Copy the parameters and the buffers of `source` to `target`, which may be sharded."""
    with torch.no_grad():
        for theirs, mine in zip(source.parameters(), target.parameters(), strict=True):
            mine.copy_(in_shards(theirs, mine))
        for theirs, mine in zip(source.buffers(), target.buffers(), strict=True):
            mine.copy_(theirs)
