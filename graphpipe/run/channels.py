"""Messages between ranks: started in the order of the schedule, waited for only where their content is needed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from graphpipe.run.agreement import Agreement
from graphpipe.run.pairs import Pair, rounds, warm_up
from graphpipe.run.world import World, translate_loss


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
            with translate_loss(f"rank {self.peer}", self.world.about(self.peer)):
                self.work.wait()
            self.work = None  # torch's handle keeps the connection open


@dataclass(slots=True)
class Channels:
    """The point-to-point messages of one rank.

    A gloo send ends only once the peer has posted its receive, so a send is never waited for before the end of the
    step; until then its tensor is kept here, because the message is read from that memory.
    """

    world: World
    sending: list[Message] = field(default_factory=list[Message])
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

    def send(self, rows: Tensor, peer: int) -> None:
        """Start sending `rows` to rank `peer`."""
        rows = rows.contiguous()
        with translate_loss(f"rank {peer}", self.world.about(peer)):
            work = dist.isend(rows, peer, group=self.world.everyone)
        self.sending.append(Message(work, rows, peer, self.world))

    def receive(self, rows: Tensor, peer: int) -> Message:
        """Start receiving from rank `peer` into `rows`, which must be contiguous."""
        assert rows.is_contiguous()
        with translate_loss(f"rank {peer}", self.world.about(peer)):
            return Message(dist.irecv(rows, peer, group=self.world.everyone), rows, peer, self.world)

    def drain(self) -> None:
        """Wait until every message sent has been taken."""
        for message in self.sending:
            message.wait()
        self.sending.clear()

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
