"""When one device copies what its stages offload, beside its tasks.

A device has a lane for each direction, and copies in the order of its tasks (`schedule.offloading`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.schedule.offloading import copied
from graphpipe.schedule.schedule import StageTask


class Copy(NamedTuple):
    """A copy to the memory of a node, or back."""

    place: int
    """Place of the stage among the stages of the device. Devices with equal times may host different stages."""
    seconds: float


class Moves(NamedTuple):
    """What a device copies at one of its tasks."""

    out: Copy | None = None
    """The copy that begins when the task ends."""
    back: Copy | None = None
    """The copy beside the task, which may begin when the task before has ended. The next task waits for it."""
    forward_of: int = -1
    """The place of a stage that offloads, if the task is its forward, which waits for all its copies but the last."""


_NOTHING = Moves()


@dataclass(slots=True)
class CopyLanes:
    """Times the copies of one device, from task to task."""

    moves: Sequence[Moves]
    """The copies that begin with each task, by its position."""
    begins: list[float] = field(default_factory=list[float])
    """When each task began."""
    left: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """The place of the stage and the end of each copy out."""
    returned: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """The place of the stage and the begin of each copy back."""
    _out: float = 0.0
    """When the lane out is free."""
    _back: float = 0.0
    _arrived: float = 0.0
    """When the copy that the next task waits for is back."""
    _last: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """The ends of the last two copies out of each stage, by its place."""

    @staticmethod
    def of(plan: Plan, tasks: Sequence[StageTask], copies: Mapping[int, Copy]) -> "CopyLanes":
        """Return the lanes of a device.

        Args:
            plan: whose stages offload to the memory of their nodes.
            tasks: of the device, in order, without updates.
            copies: of a micro-batch, by stage that offloads.
        """
        moves, forwards = [_NOTHING] * len(tasks), dict[tuple[int, int], int]()
        for at, task in enumerate(tasks):
            if task.kind == "F" and (copy := copies.get(task.stage)) is not None:
                moves[at] = Moves(forward_of=copy.place)
                forwards[task.stage, task.micro_batch] = at
        for at in copied(plan, tasks):
            copy, forward = copies[tasks[at].stage], forwards[tasks[at].stage, tasks[at].micro_batch]
            moves[forward] = moves[forward]._replace(out=copy)
            moves[at - 1] = moves[at - 1]._replace(back=copy)
        return CopyLanes(moves)

    def begin(self, free: float, ready: float) -> float:
        """Return when the next task begins, and time the copy back that runs beside it.

        Args:
            free: when the task before it ends.
            ready: when its messages are there too.
        """
        _, back, place = self.moves[len(self.begins)]
        begin = max(ready, self._arrived)
        if place in self._last:
            begin = max(begin, self._last[place][0])
        self.begins.append(begin)
        self._arrived = 0.0
        if back is not None:
            # A stage's copies back are after all its copies out, so that one micro-batch comes or goes at a time.
            start = max(free, self._last[back.place][1], self._back)
            self.returned.append((back.place, start))
            self._arrived = self._back = start + back.seconds
        return begin

    def end(self, end: float) -> None:
        """Time the copy out that follows the last task that began."""
        if (out := self.moves[len(self.begins) - 1].out) is not None:
            self._out = max(end, self._out) + out.seconds
            self._last[out.place] = self._last.get(out.place, (0.0, 0.0))[1], self._out
            self.left.append((out.place, self._out))
