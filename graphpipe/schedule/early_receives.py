"""Receives that begin before the schedule lists them, so that the receiver is ready when a message is sent."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphpipe.schedule.actions import Transfer

EARLY_BYTES = 4 * 2**20
"""Bytes of buffers that may wait. Small messages gain most and cost the least memory."""


@dataclass(slots=True, kw_only=True)
class EarlyReceives:
    """The receives of one rank in one step, in order. As many begin early as fit into a few bytes of buffers.

    If the receiver is ready, gloo sends at once. Otherwise both sides exchange notices first, and the threads that
    wait for these notices take cores from the computation. NCCL has no tags and needs messages in the order of the
    schedule, so there no receive begins early.
    """

    begin: Callable[[Transfer], int]
    """Begins to receive a transfer, and returns the bytes of its buffers."""
    size_of: Callable[[Transfer], int]
    """Returns the bytes of a transfer's buffers."""
    room: int | None
    """Bytes of buffers that may wait. None: no receive begins early, not even one of an empty message."""
    coming: deque[Transfer] = field(default_factory=deque[Transfer])
    """The receives that have not begun."""
    waiting: int = 0
    """Bytes of the buffers that wait for their message, or hold a message that is not used yet."""

    def start(self, transfers: Iterable[Transfer]) -> None:
        """Begin a step that receives these transfers, in this order."""
        self.coming = deque(transfers)
        self.waiting = 0
        self.fill()

    def fill(self) -> None:
        """Begin as many receives as there is room for."""
        while self.room is not None and self.coming and self.waiting + self.size_of(self.coming[0]) <= self.room:
            self.waiting += self.begin(self.coming.popleft())

    def reach(self, transfer: Transfer) -> None:
        """Begin the receive that the schedule lists now, unless it began early."""
        if self.coming and self.coming[0] is transfer:
            self.waiting += self.begin(self.coming.popleft())

    def used(self, count: int) -> None:
        """Free the room of buffers of so many bytes, and begin other receives in it."""
        self.waiting -= count
        self.fill()
