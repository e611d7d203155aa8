"""The lanes of one rank: one per stage replica, one per stage edge and direction, and the one that steps come in.

    main     weights ready |                                         | gradients there: reduce, tally, update
    s0              F0.0 F0.1 ...                        B0.0 ...
    edge 0 ->            copy or receive  ...                          a message waits for the task that made it alone,
    s1                                  F1.0 ... B1.0                  and for nothing else that its device computes

So stages on one GPU run side by side, and messages beside tasks: a receive begins when it is posted, not after the
tasks that were queued before it.
"""

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from graphpipe.plans import Plan
from graphpipe.run.device.stream import Lane, current_lane, new_lane

Direction = Literal["forward", "backward"]
_EVERYWHERE = -1


@dataclass(slots=True)
class Lanes:
    """Each is made when it is first used, so that a stage that is elsewhere has none."""

    device: torch.device
    sharing: dict[int, int]
    """Stages that share a lane, because gradients of theirs add up in the same tensors: the first of them, by stage."""
    stages: dict[tuple[int, int], Lane] = field(default_factory=dict[tuple[int, int], Lane])
    """By stage and device, or the first stage of those that share and `_EVERYWHERE`."""
    edges: dict[tuple[int, Direction], Lane] = field(default_factory=dict[tuple[int, Direction], Lane])
    main: Lane = field(init=False)

    def __post_init__(self) -> None:
        self.main = current_lane(self.device)

    @staticmethod
    def of(device: torch.device, plan: Plan) -> "Lanes":
        """Return the lanes of a rank. Stages that share parameters run the same module, where they are in one process.

        Args:
            device: where the rank computes.
            plan: to be run.
        """
        return Lanes(device, _united([exchange.stages for exchange in plan.exchanges]))

    def stage(self, stage: int, device: int) -> Lane:
        """Return the lane of a replica."""
        key = (self.sharing[stage], _EVERYWHERE) if stage in self.sharing else (stage, device)
        if key not in self.stages:
            self.stages[key] = self._new()
        return self.stages[key]

    def edge(self, edge: int, direction: Direction) -> Lane:
        """Return the lane of what goes along a stage edge, outputs or gradients."""
        if (edge, direction) not in self.edges:
            self.edges[edge, direction] = self._new()
        return self.edges[edge, direction]

    @contextmanager
    def forked(self) -> Generator[None]:
        """Let all lanes wait for what came before, and what comes after, if only an error, for all lanes."""
        self.main = current_lane(self.device)
        before = self.main.mark()
        for lane in self._all:
            lane.wait(before)
        try:
            yield
        finally:
            for lane in self._all:
                self.main.wait(lane.mark())

    def join(self, lanes: Iterable[Lane]) -> None:
        """Let what comes next outside of the lanes wait for these."""
        for lane in lanes:
            self.main.wait(lane.mark())

    def _new(self) -> Lane:
        lane = new_lane(self.device)
        lane.wait(self.main.mark())
        return lane

    @property
    def _all(self) -> list[Lane]:
        return [*self.stages.values(), *self.edges.values()]


def _united(groups: Iterable[Collection[int]]) -> dict[int, int]:
    # Groups with a stage in common are one.
    first: dict[int, int] = {}
    for group in groups:
        merged = {first.get(stage, stage) for stage in group}
        lowest = min(merged)
        first = {stage: lowest if stands in merged else stands for stage, stands in first.items()}
        first |= dict.fromkeys(group, lowest)
    return first
