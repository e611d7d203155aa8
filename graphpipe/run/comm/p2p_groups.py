"""Messages from one rank to another: a way of its own for each direction, with a connection and a thread of its own.

Gloo has a thread per process group that waits for what comes in, and a lock per connection, which a send holds while
it writes. If something comes on the same connection meanwhile, the thread tries again and again until the lock is
free, on a core that other ranks need: with both directions on one connection that took up to a third of the time of
small stages. NCCL has one stream per pair of ranks, and its order is that of all messages: there both ways are one.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Starts messages of one rank; each has a tag, and those of one tag from one rank to another keep their order.

    Straight to the groups, which all ranks are in: `dist.isend` finds that out anew for every message.
    """

    rank: int
    up: dist.ProcessGroup
    """For what goes to a higher rank."""
    down: dist.ProcessGroup
    """For what goes to a lower one."""

    def send(self, tensor: Tensor, target: int, tag: int = 0) -> dist.Work:
        """Start to send; the tensor must stay as it is until that is done."""
        return self._way(self.rank, target).send([_real(tensor)], target, tag)

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Start to receive into a contiguous tensor."""
        return self._way(source, self.rank).recv([_real(tensor)], source, tag)

    def _way(self, source: int, target: int) -> dist.ProcessGroup:
        return self.up if source < target else self.down


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
