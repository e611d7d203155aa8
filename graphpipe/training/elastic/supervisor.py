"""A training that continues when ranks are lost: it plans again for the devices that are left.

    graphpipe train CONFIG.toml --elastic train.checkpoint_every=100

The process that starts the ranks stays as their supervisor. It starts the ranks once for each plan. Torch's elastic
agent does not do this, because it would start all ranks again on the same devices:

    launch on 4 devices    rank 2 dies, stops or raises; its peers notice (closed connections, or run.timeout_seconds)
      all are stopped; `launch.first_failure` names the rank, and so the device
    plan for 3 devices     the costs are known already: a fraction of a second
    launch on 3 devices    every rank loads its part of the newest valid checkpoint and trains from there
      after run.readmit_seconds the lost device is probed; it answers
    at the next checkpoint all ranks leave without an error
    launch on 4 devices    with the first plan again; every step is kept

If every stage of the lost rank has another replica, and `run.reroute` is true, no process is started again, as in
ReCycle (see `degraded_plan`). The ranks that are left keep weights and optimizer state in memory (`survivor`), and join
each other anew (`launch.run_regrouping`). Where this is impossible, the run continues as above:

    launch on 4 devices    rank 2 dies; its peers leave after the same step
      the same stages, without the device of rank 2
    same processes         3 ranks repeat the step that was interrupted

If a device becomes slow, the run plans around it, if that gains (see `slow_devices`).

A run is therefore a sequence of plans. Each continues where the one before ended, or from a checkpoint of it. On the
CPU the weights equal, bit for bit, those of an uninterrupted run with the same sequence of plans. Every plan stays in
the run's folder (plan-2.json and so on). recoveries.jsonl and metrics.json say after which step each plan began, how
many steps were repeated, and how long the run stood still: from the last sign of life of the failed rank until all
ranks were ready for the next step. If a rank is lost after the last checkpoint, for example while the model is
evaluated, no step is lost and evaluation begins again. If a rank is lost after the results are written, nothing is
repeated.

Errors that would recur on any devices end the run: invalid input, a loss that is not finite, a damaged checkpoint, no
plan that fits in the memory that is left, a shortage of memory, which fewer devices would make worse, and an exception
that occurs twice at the same step.

Under torchrun the agents of the hosts are the supervisors. The ranks need a store of their own, because ranks that are
restarted in place would otherwise find the keys of the earlier start. The run needs a name, which names its folder on a
file system that all hosts share:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:2 --nproc-per-node 4 --max-restarts 10 \\
        --rdzv-backend c10d --rdzv-endpoint HOST:PORT --rdzv-id NAME -m graphpipe train CONFIG.toml --elastic

When a host is lost or comes back, the agents join again and start all ranks. Rank 0 then plans for the hosts that have
joined (see `membership`), and all ranks continue from the last checkpoint. The agents do not wait for a checkpoint when
a host comes back, so the steps since the last checkpoint are repeated. The address on which the agents listen is an
option of torchrun (--local-addr).
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from graphpipe.cluster import Cluster
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.run_regrouping import Regroup
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import list_checkpoints
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.elastic.known_slowness import note_slowness, read_slowness
from graphpipe.training.elastic.readmission import Readmission
from graphpipe.training.elastic.slow_devices import Replanning, SlowDevices
from graphpipe.training.elastic.slowed_plan import slowed
from graphpipe.training.elastic.visible_gpus import visible_gpus
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.recoveries import Interruption, note_interruption
from graphpipe.training.run_folder.run_folder import RunFolder

UNRECOVERABLE = ("InvalidInput", "Infeasible", "NonFiniteLoss", "OutOfMemory", "MemoryError", "CheckpointCorrupt")
"""Kinds of errors that would recur on any devices."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Starts the ranks of a training again, on other devices, until all steps are done. Call `train`."""

    folder: RunFolder
    """It holds the configuration and the first plan."""
    cluster: Cluster
    """All devices."""
    start: Callable[..., None]
    """Starts the ranks and waits for them: `launch` with its first argument, which says what a rank runs."""
    replan: Callable[[Cluster], Plan]
    """Plans for some devices of the cluster, and writes the plan where the ranks read it."""
    reroute: Callable[[Plan, Collection[str]], Plan | None]
    """Returns a plan of the same stages without the named devices, and writes it where the ranks read it. None: the
    ranks that are left cannot go on in memory."""
    settings: RunSettings
    tell: Callable[[str], None]
    """Called with a line for each event."""
    replanning: Replanning | None = None
    """How to plan around devices that become slow. None: the run does not."""
    slowness: dict[str, float] = field(default_factory=dict[str, float])
    """How many times as long devices compute as planned at first, by name; those that became slow."""
    losses: Counter[str] = field(default_factory=Counter[str])
    """How often each device was lost, by its name."""
    probe_at: dict[str, float] = field(default_factory=dict[str, float])
    """The devices that are lost now, and when to probe each, in seconds of `time.monotonic`."""
    recoveries: int = 0
    last_error: tuple[str, int] = ("", -1)
    """The exception that ended the last launch, and the step."""

    def train(self, plan: Plan, *, resume: bool) -> Plan:
        """Train to the last step, and return the last plan.

        Args:
            plan: to begin with.
            resume: resume from the run's newest valid checkpoint.

        Raises:
            RankFailed: a rank failed with an unrecoverable error, too often, or on the last device.
            InvalidInput: the speeds that the run has measured cannot be read.
            Infeasible: no plan fits on the devices that are left.
        """
        if resume and self.replanning is not None and self.settings.avoid_slow:
            self.slowness |= read_slowness(self.folder)
            if {*self.slowness} & {device.name for device in self.cluster.devices}:
                plan, _ = self._plan_again(None)
        while True:
            current = _Launched(plan, self._readmission())
            with current.readmission as readmission, self._slow_devices(current) as slow:
                try:
                    self._launch(plan, resume=resume, regroup=partial(self._reroute, current))
                    failure = None
                except RankFailed as error:
                    failure = error
            plan = current.plan
            if failure is None and not (readmission.accepted() or slow.accepted()):
                return plan
            if failure is not None and self.folder.metrics.exists():
                self.tell(f"{failure} The results were written before")
                return plan
            done = self._steps_done()
            if slow.found is not None:
                self.slowness |= {name: self.slowness.get(name, 1.0) * more for name, more in slow.slowness.items()}
                note_slowness(self.folder, self.slowness)
            if failure is None and not readmission.accepted():
                cause, since = slow.cause, time.monotonic()
            elif failure is None:
                cause, since = f"device {readmission.back[0]} is back", time.monotonic()
                del self.probe_at[readmission.back[0]]
            else:
                cause, since = str(failure), failure.seen
                self._note_loss(plan, failure, done)
            proposed = slow.found.plan if slow.found and failure is None and not readmission.accepted() else None
            plan, seconds = self._plan_again(proposed)
            names = tuple(plan.cluster.devices[device].name for device in plan.used_devices)
            interruption = Interruption.of(since, cause=cause, steps_done=done, devices=names, planning_seconds=seconds)
            note_interruption(self.folder, interruption)
            resume = bool(list_checkpoints(self.folder.checkpoints))

    def _launch(self, plan: Plan, *, resume: bool, regroup: Regroup) -> None:
        names = [plan.cluster.devices[device].name for device in plan.used_devices]
        self.start(
            len(names),
            arguments=[str(self.folder), "resume" * resume, "elastic"],
            port=self.settings.port,
            environment=visible_gpus(self.cluster, names) if self.losses else {},
            regroup=regroup if self.settings.reroute else None,
            timeout_seconds=self.settings.timeout_seconds,
        )

    def _reroute(self, current: "_Launched", failure: RankFailed, steps: int) -> bool:
        # Called while the ranks that are left wait.
        lost = _names(current.plan, failure)
        if self._ends_run(failure, lost, steps):
            return False
        start = time.perf_counter()
        plan = self.reroute(current.plan, lost)
        if plan is None:
            return False
        seconds = time.perf_counter() - start
        current.plan = plan
        self._count(failure, lost, steps)
        names = tuple(plan.cluster.devices[device].name for device in plan.used_devices)
        cause = f"{failure.where}: {failure.what}"
        self.tell(f"{cause}. Lost: {', '.join(lost)}; other replicas take over the samples")
        interruption = Interruption.of(
            failure.seen, cause=cause, steps_done=steps, devices=names, planning_seconds=seconds, rerouted=True
        )
        note_interruption(self.folder, interruption)
        current.readmission.begin_again()
        return True

    def _readmission(self) -> Readmission:
        return Readmission(
            folder=self.folder,
            probe_at=self.probe_at if self.settings.readmit_seconds else {},
            every_seconds=self.settings.readmit_seconds,
            environment=lambda name: visible_gpus(self.cluster, [name]),
            tell=self.tell,
        )

    def _note_loss(self, plan: Plan, failure: RankFailed, done: int) -> None:
        # Raises the failure if the run cannot recover from it.
        lost = _names(plan, failure)
        if self._ends_run(failure, lost, done):
            raise failure
        self._count(failure, lost, done)
        left = len(self.cluster.devices) - len(self.probe_at)
        self.tell(f"{failure} Lost: {', '.join(lost)}; {left} devices are left: planning again")

    def _ends_run(self, failure: RankFailed, lost: Collection[str], done: int) -> bool:
        repeated = bool(failure.kind) and (failure.what, done) == self.last_error
        left = len(self.cluster.devices) - len({*self.probe_at, *lost})
        return failure.kind in UNRECOVERABLE or repeated or not left or self.recoveries >= self.settings.most_recoveries

    def _count(self, failure: RankFailed, lost: Collection[str], done: int) -> None:
        self.last_error = (failure.what, done)
        self.recoveries += 1
        for name in lost:
            self.losses[name] += 1
            self.probe_at[name] = time.monotonic() + self.settings.readmit_seconds * 2 ** (self.losses[name] - 1)

    def _slow_devices(self, current: "_Launched") -> SlowDevices:
        return SlowDevices(
            folder=self.folder,
            current=lambda: current.plan,
            replanning=self.replanning if self.settings.avoid_slow else None,
            tell=self.tell,
        )

    def _plan_again(self, proposed: Plan | None) -> tuple[Plan, float]:
        start = time.perf_counter()
        cluster = self.cluster.without(self.probe_at.keys())
        if self.replanning is not None and self.slowness:
            plan = proposed or self.replanning.plan(*slowed(cluster, self.replanning.costs, self.slowness))
            self.replanning.use(plan)
        else:
            plan = self.replan(cluster)
        seconds = time.perf_counter() - start
        self.tell(f"planned {len(plan.stages)} stages on {len(plan.used_devices)} devices in {seconds:.2f} s")
        return plan, seconds

    def _steps_done(self) -> int:
        steps = read_metrics_log(self.folder.metrics_log)
        return steps[-1].step if steps else 0


@dataclass(slots=True)
class _Launched:
    plan: Plan
    """That the ranks run now."""
    readmission: Readmission


def _names(plan: Plan, failure: RankFailed) -> list[str]:
    return [plan.cluster.devices[plan.used_devices[rank]].name for rank in failure.failed]
