"""Notices that a rank has become slow: it computes several times as long as predicted, and as it did before.

Every rank watches itself, without a message to the others. Peers of a slow rank wait for it, and waiting does not count
as computing. A prediction alone does not decide, because costs may be estimates. A rank that is slow from its first
step on does not know it: it says how fast it is, and the launcher of an elastic run compares the ranks.
"""

import socket
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankLayout
from graphpipe.training.telemetry.event import PaceEvent, SlowEvent
from graphpipe.units import format_seconds

TIMES, STEPS, LOST_SECONDS = 3.0, 5, 1.0
"""How many times as long, for how many steps without a break, and how much time they must have cost: on a busy machine
short steps are often several times as long as others."""
REMEMBERED = 50


@dataclass(slots=True, kw_only=True)
class SlowRankWatch:
    """Watches the computing time of a rank's steps."""

    predicted_seconds: float
    """Forwards and backwards of a step on this rank."""
    usual: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    """Seconds of steps that were not slow."""
    slow: list[float] = field(default_factory=list[float])
    """Seconds of the last steps, if they all were slow."""
    told: bool = False
    """These steps were reported already."""
    paced: bool = False
    """The first steps were reported."""

    def note(self, step: int, seconds: float, steps: int = 1) -> SlowEvent | None:
        """Return an event if the rank has become slow, once until it is as fast as before.

        Args:
            step: the last one, from 1.
            seconds: in which the rank has computed, in each of these steps.
            steps: how many have ended.
        """
        before = median(self.usual) if len(self.usual) >= STEPS else float("inf")
        if seconds <= TIMES * max(self.predicted_seconds, before):
            self.usual.extend([seconds] * steps)
            self.slow.clear()
            self.told = False
            return None
        self.slow.extend([seconds] * steps)
        lost = sum(self.slow) - len(self.slow) * before
        if self.told or len(self.slow) < STEPS or lost < LOST_SECONDS:
            return None
        self.told = True
        return SlowEvent(
            step=step,
            steps=len(self.slow),
            seconds=median(self.slow),
            before_seconds=before,
            predicted_seconds=self.predicted_seconds,
        )

    def pace(self, step: int) -> PaceEvent | None:
        """Return an event for the first steps, once.

        Args:
            step: the last one that was noted.
        """
        if self.paced or len(self.usual) < STEPS:
            return None
        self.paced = True
        return PaceEvent(
            step=step, steps=len(self.usual), seconds=median(self.usual), predicted_seconds=self.predicted_seconds
        )


def describe_slowness(event: SlowEvent, layout: RankLayout) -> str:
    """Return the sentence that names a slow rank."""
    stages = ", ".join(dict.fromkeys(f"stage '{replica.stage}'" for replica in layout.replicas))
    times = event.seconds / event.before_seconds
    now, before, predicted = map(format_seconds, (event.seconds, event.before_seconds, event.predicted_seconds))
    return (
        f"rank {layout.rank} (host {socket.gethostname()}, {stages}) has become slow: "
        f"in each of the last {event.steps} steps it computed {times:.1f} times as long as before "
        f"({now}, before {before}, predicted {predicted})"
    )


def predicted_compute_seconds(plan: Plan, layout: RankLayout) -> float:
    """Return the predicted seconds of the forwards and backwards of one step on a rank."""
    numbers = {stage.name: number for number, stage in enumerate(plan.stages)}
    return sum(_stage_seconds(plan, numbers[replica.stage]) for replica in layout.replicas)


def _stage_seconds(plan: Plan, stage: int) -> float:
    here = plan.stages[stage]
    return max(task.forward + task.backward for task in plan.tasks_seconds(stage)) * plan.batch_size / here.micro_batch
