"""Notices devices that become slow while a run trains, and plans around them if that gains.

rank 1 computes 3.2 times as long as before, in 5 steps one after another    it says so itself (`slow_rank`)
its device gets a third of its speed in the plan's cluster and costs         measured, not guessed
two plans: with less work for the device, and without it                     the faster one, predicted
it saves more in the steps left than a restart takes                         then the ranks leave at a checkpoint
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Self

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.training.elastic.slowed_plan import Proposal, propose
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import SlowEvent, StartEvent
from graphpipe.training.telemetry.event_log import read_events

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanning:
    """How to plan for devices whose speed was measured, and what is left to do."""

    costs: CostTable
    """Of devices that are as fast as at first."""
    plan: Callable[[Cluster, CostTable], Plan]
    """Returns a plan for devices with these costs."""
    use: Callable[[Plan], None]
    """Writes a plan where the ranks read it."""
    steps: int
    """Of the whole training."""
    every: int
    """Steps between two checkpoints."""


@dataclass(slots=True, kw_only=True)
class SlowDevices:
    """Watches the events of the ranks in a thread while they run in the block."""

    folder: RunFolder
    current: Callable[[], Plan]
    """The plan that the ranks run now."""
    replanning: Replanning | None
    """None: nothing is watched."""
    tell: Callable[[str], None]
    """Called with a line when a plan around a device was made."""
    found: Proposal | None = None
    """The plan for which the ranks have been asked to leave."""
    slowness: dict[str, float] = field(default_factory=dict[str, float])
    """How many times as long devices compute as under the present plan, by name."""
    _sizes: dict[int, int] = field(default_factory=dict[int, int])
    _told: dict[int, float] = field(default_factory=dict[int, float])
    _began: float = field(default_factory=time.time)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def accepted(self) -> bool:
        """Return whether the ranks have left because there is a better plan."""
        return self.found is not None and not self.folder.leave_request.exists()

    def __enter__(self) -> Self:
        """Start the thread."""
        if self.replanning is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="graphpipe-slow-devices")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(POLL_SECONDS)  # It may be planning.

    def _watch(self) -> None:
        while self.found is None and not self._ended.wait(POLL_SECONDS):
            plan = self.current()
            for rank in range(len(plan.used_devices)):
                event, restart_seconds = self._news(plan, rank)
                if event is not None and self.found is None:
                    self._consider(plan, rank, event, restart_seconds)

    def _news(self, plan: Plan, rank: int) -> tuple[SlowEvent | None, float]:
        """Return the last event of this plan's rank if it has become slow, and the seconds that its start took."""
        path = self.folder.events(rank)
        size = path.stat().st_size if path.exists() else 0
        if size == self._sizes.get(rank, 0):
            return None, 0.0
        self._sizes[rank] = size
        try:
            lines = read_events(path)
        except InvalidInput:  # It is being begun again.
            return None, 0.0
        present, began, news = "", 0.0, None
        for line in lines:
            if line.unix_seconds < self._began:
                continue
            if isinstance(line.event, StartEvent):
                present, began, news = line.event.plan_fingerprint, began or line.unix_seconds, None
            elif isinstance(line.event, SlowEvent) and line.unix_seconds > self._told.get(rank, 0.0):
                news = line.event
                self._told[rank] = line.unix_seconds
        return (news if present == plan.fingerprint else None), began - self._began

    def _consider(self, plan: Plan, rank: int, event: SlowEvent, restart_seconds: float) -> None:
        assert self.replanning is not None
        device = plan.cluster.devices[plan.used_devices[rank]].name
        self.slowness[device] = event.seconds / event.before_seconds
        steps = [each.seconds for each in read_metrics_log(self.folder.metrics_log)][-event.steps :]
        checkpoint = -(-(event.step + 1) // self.replanning.every) * self.replanning.every
        left = max(0, self.replanning.steps - checkpoint)
        found = propose(
            plan,
            self.slowness,
            self.replanning.plan,
            step_seconds=median(steps),
            steps_left=left,
            restart_seconds=restart_seconds,
        )
        if found is None or self._ended.is_set():
            return
        self.tell(f"device {device} computes {self.slowness[device]:.1f} times as long as before; {found}")
        if found.gains:
            self.found = found
            self.folder.leave_request.write_text(device, encoding="utf-8")
