"""Notices devices that become slow while a run trains, names them, and plans around them if that gains.

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
from graphpipe.training.telemetry.event_log import read_new_events

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
    """None: the plan stays. A device that is slow from the first step on is named, which no rank can do itself."""
    tell: Callable[[str], None]
    """Called with a line for each device that is slow."""
    found: Proposal | None = None
    """The plan for which the ranks have been asked to leave."""
    slowness: dict[str, float] = field(default_factory=dict[str, float])
    """How many times as long devices compute as under the present plan, by name."""
    _ranks: dict[int, "_Rank"] = field(default_factory=lambda: dict[int, _Rank]())
    """What each rank has said."""
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

    @property
    def cause(self) -> str:
        """Says which devices are slow."""
        since = "been slow from the first step on" if {*self.slowness} <= {*self._at_first} else "become slow"
        return f"device {', '.join(self.slowness)} has {since}"

    def __enter__(self) -> Self:
        """Start the thread, if there is anything to notice."""
        if self.replanning is not None or _measured(self.current()):
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
                if event is not None and self.found is None and self.replanning is not None:
                    device = _device(plan, rank)
                    times = self._at_first.get(device, 1.0) * event.seconds / event.before_seconds
                    self._consider(plan, {device: times}, event, "before")
            if self.found is None:
                self._compare(plan)

    def _news(self, plan: Plan, rank: int) -> SlowEvent | None:
        """Note how fast this plan's rank was at first, and return its last event if it has become slow."""
        path, known = self.folder.events(rank), self._ranks.setdefault(rank, _Rank())
        if not path.exists() or path.stat().st_size == known.read:
            return None
        try:
            lines, known.read = read_new_events(path, known.read, ("start", "pace", "slow"))
        except InvalidInput:
            return None
        news = None
        for line in lines:
            if line.unix_seconds < self._began:
                continue
            if isinstance(line.event, StartEvent):
                self._start_seconds = self._start_seconds or line.unix_seconds - self._began
                known.plan, known.pace, news = line.event.plan_fingerprint, None, None
            elif isinstance(line.event, PaceEvent):
                known.pace = line.event
            elif isinstance(line.event, SlowEvent):
                news = line.event
        return news if known.plan == plan.fingerprint else None

    def _compare(self, plan: Plan) -> None:
        """Find devices that are slow from the first step on, once all ranks have said how fast they are."""
        fingerprint = plan.fingerprint
        known = {rank: each.pace for rank, each in self._ranks.items() if each.plan == fingerprint}
        paces = {rank: pace for rank, pace in known.items() if pace is not None}
        ready = len(paces) == len(plan.used_devices) and self._compared != fingerprint
        if not ready or not _measured(plan):
            return
        self._compared = fingerprint
        found = slow_from_start(paces)
        self._at_first = {_device(plan, rank): times for rank, times in found.items()}
        if found:
            last = max(paces.values(), key=lambda each: each.step)
            self._consider(plan, self._at_first, last, "predicted, compared with the other devices")

    def _consider(self, plan: Plan, slow: Mapping[str, float], event: SlowEvent | PaceEvent, than: str) -> None:
        each = " and ".join(f"device {name} computes {times:.1f} times" for name, times in slow.items())
        said = f"{each} as long as {than}"
        self.slowness |= slow
        if self.replanning is None:
            self.tell(said)
            return
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
        if self._ended.is_set():
            return
        self.tell(said if found is None else f"{said}; {found}")
        if found is not None and found.gains:
            self.found = found
            self.folder.leave_request.write_text(", ".join(slow), encoding="utf-8")


@dataclass(slots=True)
class _Rank:
    # What a rank has said in its events.
    read: int = 0
    """Bytes of its file that were read."""
    plan: str = ""
    """The fingerprint of its last plan."""
    pace: PaceEvent | None = None
    """How fast it was in its first steps under this plan."""


def _device(plan: Plan, rank: int) -> str:
    return plan.cluster.devices[plan.used_devices[rank]].name


def _measured(plan: Plan) -> bool:
    # Estimates may be several times too short for one operator, and then so is the prediction for a rank.
    kinds = {plan.cluster.devices[device].type for device in plan.used_devices}
    return all(row.source == "profiled" for row in plan.costs.rows if row.device_type in kinds)
