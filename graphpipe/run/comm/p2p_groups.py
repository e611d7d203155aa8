"""Process groups for messages from one rank to another: one group per direction.

Each gloo group has its own connections and its own thread, which waits for incoming data. A send locks the connection
while it writes. If data arrives on the same connection meanwhile, the thread spins until the lock is free, on a core
that other ranks need. With both directions on one connection this took up to a third of the time of small stages.
NCCL has one stream per pair of ranks, which orders all messages, so both directions use one group.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PGroups:
    """Starts the messages of one rank. Messages with one tag from one rank to another keep their order.

    Calls the groups directly, because `dist.isend` would look up the group's ranks for every message.
    """

    rank: int
    up: dist.ProcessGroup
    """The group for messages to a higher rank."""
    down: dist.ProcessGroup
    """The group for messages to a lower rank."""

    def send(self, tensor: Tensor, target: int, tag: int = 0) -> dist.Work:
        """Start to send; the tensor must not change until the send completes."""
        return self._group(self.rank, target).send([_real(tensor)], target, tag)

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Start to receive into a contiguous tensor."""
        return self._group(source, self.rank).recv([_real(tensor)], source, tag)

    def _group(self, source: int, target: int) -> dist.ProcessGroup:
        return self.up if source < target else self.down


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
