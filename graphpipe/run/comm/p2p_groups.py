"""Point-to-point messages of one rank: in which group of ranks each of them goes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


class NewGroup(Protocol):
    """Makes a group of ranks. Every rank of the world must call it."""

    def __call__(self, ranks: list[int], /) -> dist.ProcessGroup:
        """Return the group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PGroups:
    """Starts the messages of one rank. Messages with one tag from one rank to another keep their order.

    There is one group per direction. Each gloo group has its own connections and its own thread, which waits for
    incoming data. A send locks the connection while it writes. If data arrives on the same connection meanwhile, the
    thread spins until the lock is free, on a core that other ranks need. With both directions on one connection this
    took up to a third of the time of small stages.

    NCCL has one stream per communicator, which orders all its messages. Every pair of ranks gets two communicators, one
    for each direction (`open`), so that a message does not wait for one that goes the other way. In the group of all
    ranks, all messages of a rank would share one communicator if the caller initialised torch with a `device_id`.

    The groups are called directly, because `dist.isend` would look up the group's ranks for every message.
    """

    rank: int
    up: dist.ProcessGroup
    """The group for messages to a higher rank."""
    down: dist.ProcessGroup
    """The group for messages to a lower rank."""
    pairs: dict[Pair, dist.ProcessGroup] = field(default_factory=dict[Pair, dist.ProcessGroup])
    """The groups of two for messages from the first rank to the second, which are used in place of `up` and `down`."""

    def open(self, pairs: Iterable[Pair], new_group: NewGroup) -> None:
        """Open groups of two for the messages between these ranks; every rank of the world must call this alike."""
        for low, high in sorted(pairs):
            for way in ((low, high), (high, low)):
                if way not in self.pairs:
                    self.pairs[way] = new_group([low, high])

    def send(self, tensor: Tensor, target: int, tag: int = 0) -> dist.Work:
        """Start to send; the tensor must not change until the send completes."""
        if (self.rank, target) in self.pairs:
            return self.together([tensor], target, tag, sends=True)[0]
        group = self.up if self.rank < target else self.down
        return group.send([_real(tensor)], target, tag)

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Start to receive into a contiguous tensor."""
        if (source, self.rank) in self.pairs:
            return self.together([tensor], source, tag, sends=False)[0]
        group = self.up if source < self.rank else self.down
        return group.recv([_real(tensor)], source, tag)

    def together(self, tensors: Sequence[Tensor], peer: int, tag: int = 0, *, sends: bool) -> list[dist.Work]:
        """Start to send, or to receive, several tensors at once, in their order. The peer does the opposite alike.

        NCCL starts one kernel for all of them. A single message to a pair's group comes here too: NCCL has a
        communicator of the group for these calls, and would make one more for others, with an order of its own.

        Returns:
            what to wait for: of each tensor, or one of all.
        """
        source, target = (self.rank, peer) if sends else (peer, self.rank)
        group, place = self.up if source < target else self.down, peer
        if (pair := self.pairs.get((source, target))) is not None:
            group, place = pair, int(peer == max(source, target))
        start = dist.isend if sends else dist.irecv
        return dist.batch_isend_irecv(
            [dist.P2POp(start, _real(tensor), group=group, tag=tag, group_peer=place) for tensor in tensors]
        )

    @property
    def all(self) -> list[dist.ProcessGroup]:
        """All groups of which this rank is a member."""
        own = (group for way, group in self.pairs.items() if self.rank in way)
        return [self.up, self.down, *own]


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
