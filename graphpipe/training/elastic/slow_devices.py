"""Notices devices that become slow while a run trains, and plans around them if that gains.

rank 1 computes 3.2 times as long as before, in 5 steps one after another    it says so itself (`slow_rank`)
or does so from its first step on, compared with the other ranks             `first_paces`, if costs were profiled
its device gets a third of its speed in the plan's cluster and costs         measured, not guessed
two plans: with less work for the device, and without it                     the faster one, predicted
it saves more in the steps left than a restart takes                         then the ranks leave at a checkpoint
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Self

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.training.elastic.first_paces import slow_from_start
from graphpipe.training.elastic.slowed_plan import Proposal, propose
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import PaceEvent, SlowEvent, StartEvent
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
    _paces: dict[int, PaceEvent] = field(default_factory=dict[int, PaceEvent])
    """Of the ranks that have done their first steps under the present plan."""
    _at_first: dict[str, float] = field(default_factory=dict[str, float])
    """How many times as long devices have computed since their ranks started, those that were slow."""
    _compared: str = ""
    """The plan whose ranks were compared."""
    _start_seconds: float = 0.0
    """That the ranks took to start."""
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
                event = self._news(plan, rank)
                if event is not None and self.found is None:
                    device = _device(plan, rank)
                    times = self._at_first.get(device, 1.0) * event.seconds / event.before_seconds
                    self._consider(plan, {device: times}, event, "before")
            if self.found is None:
                self._compare(plan)

    def _news(self, plan: Plan, rank: int) -> SlowEvent | None:
        """Note how fast this plan's rank was at first, and return its last event if it has become slow."""
        path = self.folder.events(rank)
        size = path.stat().st_size if path.exists() else 0
        if size == self._sizes.get(rank, 0):
            return None
        self._sizes[rank] = size
        try:
            lines = read_events(path)
        except InvalidInput:  # It is being begun again.
            return None
        present, began, news, pace = "", 0.0, None, None
        for line in lines:
            if line.unix_seconds < self._began:
                continue
            if isinstance(line.event, StartEvent):
                present, began, news, pace = line.event.plan_fingerprint, began or line.unix_seconds, None, None
            elif isinstance(line.event, PaceEvent):
                pace = line.event
            elif isinstance(line.event, SlowEvent) and line.unix_seconds > self._told.get(rank, 0.0):
                news = line.event
                self._told[rank] = line.unix_seconds
        self._start_seconds = began - self._began
        self._paces.pop(rank, None)
        if present != plan.fingerprint:
            return None
        if pace is not None:
            self._paces[rank] = pace
        return news

    def _compare(self, plan: Plan) -> None:
        """Find devices that are slow from the first step on, once all ranks have said how fast they are."""
        ready = len(self._paces) == len(plan.used_devices) and self._compared != plan.fingerprint
        if not ready or not _measured(plan):
            return
        self._compared = plan.fingerprint
        found = slow_from_start(self._paces)
        self._at_first = {_device(plan, rank): times for rank, times in found.items()}
        if found:
            last = max(self._paces.values(), key=lambda each: each.step)
            self._consider(plan, self._at_first, last, "predicted, compared with the other devices")

    def _consider(self, plan: Plan, slow: Mapping[str, float], event: SlowEvent | PaceEvent, than: str) -> None:
        assert self.replanning is not None
        self.slowness |= slow
        steps = [each.seconds for each in read_metrics_log(self.folder.metrics_log)][-event.steps :]
        checkpoint = -(-(event.step + 1) // self.replanning.every) * self.replanning.every
        left = max(0, self.replanning.steps - checkpoint)
        found = propose(
            plan,
            self.slowness,
            self.replanning.plan,
            step_seconds=median(steps),
            steps_left=left,
            restart_seconds=self._start_seconds,
        )
        if found is None or self._ended.is_set():
            return
        each = " and ".join(f"device {name} computes {times:.1f} times" for name, times in slow.items())
        self.tell(f"{each} as long as {than}; {found}")
        if found.gains:
            self.found = found
            self.folder.leave_request.write_text(", ".join(slow), encoding="utf-8")


def _device(plan: Plan, rank: int) -> str:
    return plan.cluster.devices[plan.used_devices[rank]].name


def _measured(plan: Plan) -> bool:
    # Estimates may be several times too short for one operator, and then so is the prediction for a rank.
    kinds = {plan.cluster.devices[device].type for device in plan.used_devices}
    return all(row.source == "profiled" for row in plan.costs.rows if row.device_type in kinds)
