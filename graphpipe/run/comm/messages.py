"""Messages between ranks: started in the order of the schedule, waited for only where their content is needed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.batch_comparison import Agreement
from graphpipe.run.comm.warm_up_pairs import Pair, rounds, warm_up
from graphpipe.run.comm.world import World
from graphpipe.schedule import Transfer


@dataclass(slots=True)
class Message:
    """A message under way, and the tensor it is read from or written to."""

    work: dist.Work | None
    rows: Tensor
    peer: int
    """The rank at the other end."""
    world: World

    def wait(self) -> None:
        """Wait until the message has gone or come.

        Raises:
            PeerLost, PeerStalled: it never will.
        """
        if self.work is not None:
            with self.world.waiting_for(self.peer):
                self.work.wait()
            self.work = None  # torch's handle keeps the connection open


@dataclass(slots=True)
class Channels:
    """The point-to-point messages of one rank.

    A gloo send ends only once the peer has posted its receive, so a send is never waited for before it is known to
    have been taken, or the step ends; until then its tensor is kept here, because the message is read from that memory.
    """

    world: World
    sending: dict[int, list[Message]] = field(default_factory=dict[int, list[Message]])
    """A message per value, by identity of the transfer: hashing one takes longer."""
    agreement: Agreement | None = None
    """Under way; None once it is settled."""
    warm: set[Pair] = field(default_factory=set[Pair])
    """The pairs of ranks, this one's or not, that have talked to each other."""

    def open(self, pairs: Iterable[Pair]) -> None:
        """Get ready for messages between these ranks, where that takes more than to send them; all ranks call this.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        new = {*pairs} - self.warm
        if self.world.in_order and new:
            warm_up(self.world, [pair for one in rounds(new) for pair in one])
        self.warm |= new

    def send(self, rows: Tensor, peer: int, transfer: Transfer) -> None:
        """Start sending `rows`, a value of a transfer, to rank `peer`."""
        rows = rows.contiguous()
        with self.world.waiting_for(peer):
            work = self.world.messages.send(rows, peer)
        self.sending.setdefault(id(transfer), []).append(Message(work, rows, peer, self.world))

    def receive(self, rows: Tensor, peer: int) -> Message:
        """Start receiving from rank `peer` into `rows`, which must be contiguous."""
        assert rows.is_contiguous()
        with self.world.waiting_for(peer):
            return Message(self.world.messages.receive(rows, peer), rows, peer, self.world)

    def let_go(self, transfers: Iterable[Transfer]) -> None:
        """Keep no longer what these transfers sent: it is known to have been taken."""
        for transfer in transfers:
            self._end(self.sending.pop(id(transfer), ()))

    def drain(self) -> None:
        """Wait until every message sent has been taken."""
        for messages in self.sending.values():
            self._end(messages)
        self.sending.clear()

    @staticmethod
    def _end(messages: Iterable[Message]) -> None:
        for message in messages:
            message.wait()

    def forget(self) -> None:
        """Let go of all messages: a handle keeps its connection open."""
        self.sending.clear()
        self.agreement = None

    def settle(self) -> None:
        """Wait until it is known that all ranks mean the same mini-batch, before the first message of a step.

        Raises:
            InvalidInput: they do not.
            PeerLost, PeerStalled: another rank is gone.
        """
        agreement, self.agreement = self.agreement, None
        if agreement is not None:
            agreement.settle()
