"""Work in order of time, where messages share the ports of devices.

A device has one port for what it sends and one for what it receives, at each level of the cluster whose link is shared.
A message takes both of its ports at once. With n messages in a port, none of them gets more than 1/n of its bandwidth,
so a message has the share that the fuller of its ports leaves it. It shares bandwidth, not latency:

    port of a   |latency| a -> b alone | a -> b and a -> c at half their speed | a -> c alone |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Port(NamedTuple):
    """The port of a device to a level of the cluster, in one direction."""

    device: int
    level: str
    sends: bool


Uses = Sequence[tuple[Port, int]]
"""The ports that work takes, and how many equal messages it stands for there, itself included."""


def both_ways(devices: Sequence[int], level: str) -> Uses:
    """Return the ports that a collective over some devices takes: those of all of them, in both directions."""
    return [(Port(device, level, sends), 1) for device in devices for sends in (True, False)]


@dataclass(slots=True, eq=False)
class _Flow(Generic[Item]):
    item: Item
    uses: Uses
    left: float
    """Seconds that it still needs at full speed, at the time `since`."""
    since: float = 0.0
    sharing: int = 1
    """The number of messages in the fuller of its ports."""
    turn: int = 0
    """How often its end was computed."""


_ENTERS = -1


@dataclass(slots=True)
class PortQueue(Generic[Item]):
    """Work that has begun, and when each piece of it ends."""

    now: float = 0.0
    _events: list[tuple[float, int, _Flow[Item], int]] = field(
        default_factory=list[tuple[float, int, _Flow[Item], int]]
    )
    """A heap of times, with the turn of the flow in which the time was computed."""
    _numbers: "count[int]" = field(default_factory=count)
    _users: dict[Port, dict[_Flow[Item], None]] = field(default_factory=dict[Port, dict[_Flow[Item], None]])
    """The flows in each port, in the order in which they entered."""
    _counts: dict[Port, int] = field(default_factory=dict[Port, int])

    def begin(self, at: float, item: Item, seconds: float, uses: Uses = (), delay: float = 0.0) -> None:
        """Begin a piece of work.

        Args:
            at: when it begins, not before `now`.
            item: what `advance` returns once it has ended.
            seconds: that it takes if nothing shares its ports.
            uses: the ports that it takes.
            delay: the first part of `seconds`, in which it does not take its ports yet.
        """
        if uses and seconds > delay:
            self._push(at + delay, _Flow(item, uses, seconds - delay), _ENTERS)
        else:
            self._push(at + seconds, _Flow(item, (), 0.0), 0)

    @property
    def waits(self) -> bool:
        """Whether anything has begun and not ended."""
        return bool(self._events)

    def next_seconds(self) -> float:
        """Return a time until which nothing ends; infinite if nothing has begun."""
        return self._events[0][0] if self._events else inf

    def advance(self) -> Item | None:
        """Go on to this time. Return what has ended, or None if nothing has."""
        self.now, _, flow, turn = heappop(self._events)
        if turn == _ENTERS:
            flow.since = self.now
            self._push(self.now + flow.left, flow, flow.turn)
            self._change(flow, 1)
            return None
        if turn != flow.turn:
            return None  # The end was computed again.
        if flow.uses:
            self._change(flow, -1)
        return flow.item

    def _push(self, at: float, flow: _Flow[Item], turn: int) -> None:
        heappush(self._events, (at, next(self._numbers), flow, turn))

    def _change(self, flow: _Flow[Item], by: int) -> None:
        """Let a flow enter its ports, or leave them. The others in them become slower or faster."""
        others: dict[_Flow[Item], None] = {}
        counts = self._counts
        for port, equal in flow.uses:
            counts[port] = counts.get(port, 0) + by * equal
            users = self._users.setdefault(port, {})
            if by > 0:
                users[flow] = None
            else:
                del users[flow]
            others |= users
        for other in others:
            if (sharing := max([counts[port] for port, _ in other.uses])) != other.sharing:
                self._pace(other, sharing)

    def _pace(self, flow: _Flow[Item], sharing: int) -> None:
        flow.left = max(0.0, flow.left - (self.now - flow.since) / flow.sharing)
        flow.since, flow.sharing, flow.turn = self.now, sharing, flow.turn + 1
        self._push(self.now + flow.left * sharing, flow, flow.turn)
