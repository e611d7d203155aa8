"""Messages between ranks: started in the order of the schedule, waited for only when their values are needed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from graphpipe.devices.device_kind import Mark
from graphpipe.run.comm.batch_comparison import BatchComparison
from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.warm_up_pairs import disjoint_rounds, warm_up
from graphpipe.run.comm.world import World
from graphpipe.schedule import Transfer


def _ignore(mark: Mark) -> None:
    """Do nothing."""


@dataclass(slots=True)
class PendingMessage:
    """A message in transit, and the tensor that it is read from or written to."""

    work: dist.Work | None
    rows: Tensor
    peer: int
    """The rank at the other end."""
    world: World
    readers: list["Reader"] = field(default_factory=list["Reader"])
    """Other tasks of the device that read the same value, until they have their copies."""
    arrived: Callable[[Mark], None] = _ignore
    """Called with the point of a stream after which the message is there, if a task that needs a copy waited for it
    first."""

    def wait(self) -> None:
        """Wait until the message is sent or received.

        Raises:
            PeerLost, PeerStalled: the peer is gone.
        """
        if self.work is not None:
            with self.world.waiting_for(self.peer):
                self.work.wait()
            self.work = None  # torch's handle keeps the connection open


@dataclass(frozen=True, slots=True)
class Reader:
    """A task that needs a copy of a message for another one, because the value is sent to a device once."""

    rows: Tensor
    """The tensor that the copy goes to."""
    ready: Callable[[Mark], None]
    """Called with the point of a stream after which the copy is there."""


@dataclass(slots=True)
class RankMessages:
    """The point-to-point messages of one rank.

    A gloo send completes only after the peer has posted its receive. So a send is waited for only when the peer is
    known to have received it, or when the step ends. Until then its tensor is kept here, because gloo reads it.
    """

    world: World
    sending: dict[int, list[PendingMessage]] = field(default_factory=dict[int, list[PendingMessage]])
    """The messages that are on their way, one per value, by `id(transfer)`, because hashing a transfer takes longer."""
    comparison: BatchComparison | None = None
    """The comparison of this step; None once it has ended."""
    warm: set[Pair] = field(default_factory=set[Pair])
    """The pairs of ranks, of the whole world, that have communicated."""

    def open(self, pairs: Iterable[Pair]) -> None:
        """Connect these ranks if the backend connects on the first message; all ranks call this.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        new = {*pairs} - self.warm
        if self.world.in_order and new:
            self.world.open_pairs(new)
            warm_up(self.world, [pair for one in disjoint_rounds(new) for pair in one])
        self.warm |= new

    def send(self, values: Sequence[Tensor], peer: int, transfer: Transfer) -> None:
        """Start sending the values of a transfer, which must be contiguous, to rank `peer`."""
        assert all(rows.is_contiguous() for rows in values)
        pending = self._start(values, peer, sends=True)
        self.sending.setdefault(id(transfer), []).extend(pending)

    def receive(self, values: Sequence[Tensor], peer: int) -> list[PendingMessage]:
        """Start receiving the values of a transfer from rank `peer` into tensors, which must be contiguous."""
        assert all(rows.is_contiguous() for rows in values)
        return self._start(values, peer, sends=False)

    def _start(self, values: Sequence[Tensor], peer: int, *, sends: bool) -> list[PendingMessage]:
        p2p = self.world.p2p
        with self.world.waiting_for(peer):
            if len(values) > 1 and self.world.in_order:
                works = p2p.together(values, peer, sends=sends)
            else:
                works = [p2p.send(rows, peer) if sends else p2p.receive(rows, peer) for rows in values]
        each = works if len(works) == len(values) else works * len(values)
        return [PendingMessage(work, rows, peer, self.world) for work, rows in zip(each, values, strict=True)]

    def release(self, transfers: Iterable[Transfer]) -> None:
        """Release what these transfers sent, because the peers have received it."""
        for transfer in transfers:
            self._end(self.sending.pop(id(transfer), ()))

    def drain(self) -> None:
        """Wait until every sent message is received."""
        for messages in self.sending.values():
            self._end(messages)
        self.sending.clear()

    @staticmethod
    def _end(messages: Iterable[PendingMessage]) -> None:
        for message in messages:
            message.wait()

    def forget(self) -> None:
        """Drop all messages, because a handle keeps its connection open."""
        self.sending.clear()
        self.comparison = None

    def finish_comparison(self) -> None:
        """Wait until this step's comparison has ended, before the first message of the step.

        Raises:
            InvalidInput: another rank was given another mini-batch.
            PeerLost, PeerStalled: another rank is gone.
        """
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            comparison.settle()
