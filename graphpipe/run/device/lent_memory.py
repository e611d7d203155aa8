"""Memory of one stream that other streams use: it is kept until its own stream has waited for them.

Torch reuses freed memory at once on the stream that allocated it, without regard to other streams. It can be told of
them (`record_stream`). Then a freed block waits until the device has come so far, and the host runs ahead of the device
by a whole step: each message of the step would have blocks of its own. So references are kept instead, and the streams
wait for each other. The host does not.

    d0       B.0 .. | B.1 waits for the copy of B.0's gradient, which is free now
    edge <-      copy into a buffer    copy    the third copy waits for B.0 of d1, and takes the first buffer
    d1                        B.0 ..     B.1
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from graphpipe.devices.device_kind import Mark, Stream


class Loan(NamedTuple):
    """Tensors that are kept."""

    tensors: tuple[Tensor, ...]
    until: Mark
    """The point of another stream after its use of them."""


@dataclass(slots=True)
class EdgeBuffers:
    """The buffers of an edge's messages that tasks have read for the last time."""

    stream: Stream
    """Of the edge."""
    fresh: list[Loan] = field(default_factory=list[Loan])
    older: list[Loan] = field(default_factory=list[Loan])
    """From before the last message."""

    def settle(self) -> None:
        """Wait for tasks that have read buffers, and free these. Called before each message.

        Buffers that came back since the last message are kept for this one, so that it does not wait for the tasks
        right before it.
        """
        for loan in self.older:
            self.stream.wait(loan.until)
        self.older, self.fresh = self.fresh, []


@dataclass(slots=True)
class LentMemory:
    """What the tasks of a device have made or received, and messages may still read."""

    stream: Stream
    """Of the tasks."""
    lent: list[Loan] = field(default_factory=list[Loan])
    received: list[tuple[EdgeBuffers, tuple[Tensor, ...]]] = field(
        default_factory=list[tuple[EdgeBuffers, tuple[Tensor, ...]]]
    )

    def lend(self, tensors: Iterable[Tensor], reader: Stream) -> None:
        """Keep tensors of this stream until it has waited for what is queued on `reader` now."""
        if reader is not self.stream:
            self.lent.append(Loan(tuple(tensors), reader.mark()))

    def give_back(self, edge: EdgeBuffers, tensors: Iterable[Tensor]) -> None:
        """Keep buffers of an edge, which a task has read for the last time.

        The task may have sent on what it received. So they go back after this stream has waited for its own loans.
        """
        if edge.stream is not self.stream:
            self.received.append((edge, tuple(tensors)))

    def settle(self) -> None:
        """Wait for the messages that read what the last task made, and free that. Called before each task.

        A message between ranks does not keep its stream busy: it holds its tensors itself, until it is waited for.
        """
        for loan in self.lent:
            self.stream.wait(loan.until)
        if self.received:
            now = self.stream.mark()
            for edge, tensors in self.received:
                edge.fresh.append(Loan(tensors, now))
        self.lent, self.received = [], []
