"""Messages from one rank to another: a way of its own for each direction, with a connection and a thread of its own.

Gloo has a thread per process group that waits for what comes in, and a lock per connection, which a send holds while
it writes. If something comes on the same connection meanwhile, the thread tries again and again until the lock is
free, on a core that other ranks need: with both directions on one connection that took up to a third of the time of
small stages. NCCL has one stream per pair of ranks, and its order is that of all messages: there both ways are one.
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Starts messages of one rank; each has a tag, and those of one tag from one rank to another keep their order."""

    rank: int
    up: dist.ProcessGroup
    """For what goes to a higher rank."""
    down: dist.ProcessGroup
    """For what goes to a lower one."""

    def send(self, tensor: Tensor, target: int, tag: int = 0) -> dist.Work:
        """Start to send; the tensor must stay as it is until that is done."""
        return _begun(dist.isend(tensor, target, group=self._way(self.rank, target), tag=tag))

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Start to receive into a contiguous tensor."""
        return _begun(dist.irecv(tensor, source, group=self._way(source, self.rank), tag=tag))

    def _way(self, source: int, target: int) -> dist.ProcessGroup:
        return self.up if source < target else self.down


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the group"
    return work
