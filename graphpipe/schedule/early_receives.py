"""Receives that begin before their turn, so that messages find their receiver waiting."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphpipe.schedule.lowered import Transfer

AHEAD_BYTES = 4 * 2**20
"""Small messages gain most, and cost the least memory."""


@dataclass(slots=True, kw_only=True)
class Ahead:
    """The receives of one rank in one step, in order: as many begin at once as fit into a few bytes of buffers.

    Gloo sends at once what the other side is ready for. Otherwise sender and receiver first tell each other that they
    are, and the threads that listen for it take the cores from those that compute. NCCL, which has no tags, wants
    messages in the order of the schedule: there nothing begins early.
    """

    begin: Callable[[Transfer], int]
    """Begins to receive, and returns the bytes of the buffers."""
    size_of: Callable[[Transfer], int]
    """Returns the same bytes, and does nothing."""
    room: int | None
    """Bytes of buffers that may wait; None: nothing begins before its turn, not even a message without a byte."""
    coming: deque[Transfer] = field(default_factory=deque[Transfer])
    """Those that have not begun."""
    waiting: int = 0
    """Bytes of the buffers that wait for their messages, or to be used."""

    def start(self, transfers: Iterable[Transfer]) -> None:
        """Begin a step that receives these, in this order."""
        self.coming = deque(transfers)
        self.waiting = 0
        self.fill()

    def fill(self) -> None:
        """Begin as many as there is room for."""
        while self.room is not None and self.coming and self.waiting + self.size_of(self.coming[0]) <= self.room:
            self.waiting += self.begin(self.coming.popleft())

    def reach(self, transfer: Transfer) -> None:
        """Begin this one, whose turn it is, unless it has begun."""
        if self.coming and self.coming[0] is transfer:
            self.waiting += self.begin(self.coming.popleft())

    def used(self, count: int) -> None:
        """Note that buffers of so many bytes are used, and begin others in their place."""
        self.waiting -= count
        self.fill()
