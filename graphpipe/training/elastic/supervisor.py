"""A training that goes on when ranks are lost: it plans again for the devices that are left.

    graphpipe train CONFIG.toml --elastic train.checkpoint_every=100

The process that starts the ranks stays as their supervisor. Each life of the ranks is one launch by torch's elastic
agent, without restarts of its own, which would start all of them again on the same devices:

    launch on 4 devices    rank 2 dies, stops or raises; its peers notice (closed connections, or run.timeout_seconds)
      the agent stops them all; `first_cause` names the rank, and so the device
    plan for 3 devices     the costs are known already: a fraction of a second
    launch on 3 devices    every rank loads its part of the last good checkpoint; training goes on from there
      the lost device is looked at after run.readmit_seconds; it answers
    at the next checkpoint all ranks leave in peace
    launch on 4 devices    with the first plan again; no step is lost

So a run is a sequence of plans, each on from a checkpoint of the one before, and its weights are those of an unbroken
run with the same sequence: bit for bit on the CPU, whatever was lost in between. Every plan stays in the run's folder
(plan-2.json and so on), and recoveries.jsonl and metrics.json tell after which step each began, how many steps were
done twice and how long the run stood still: from the last sign of life of the rank that failed until all ranks were
ready for the next step. A rank that is lost after the last checkpoint, as while the model is evaluated, costs no step:
evaluation begins anew. One that is lost when the results are written costs nothing.

What would come again wherever it runs ends the run: invalid input, a loss that is not finite, a damaged checkpoint,
no plan that fits in the memory that is left, a shortage of memory, which fewer devices would make worse; and an
exception that comes twice at the same step.

Under torchrun the agents of the hosts are the supervisors. They need a store of their own, or ranks that start anew in
place meet the old store, and a name for the run, which names its folder on a file system that all hosts share:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:2 --nproc-per-node 4 --max-restarts 10 \\
        --rdzv-backend c10d --rdzv-endpoint HOST:PORT --rdzv-id NAME -m graphpipe train CONFIG.toml --elastic

A host that is lost, or comes back, makes the agents meet again and start all ranks; rank 0 then plans for the hosts
that came (`meeting.meet`), and all go on from the last checkpoint. The agents do not wait for a checkpoint when a host
comes back: steps since the last one are done again. Where they listen is torchrun's to say (--local-addr).
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.export_weights import CHECKPOINTS
from graphpipe.run.checkpoint.folder import checkpoints_in
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.elastic.readmission import Readmission
from graphpipe.training.elastic.visible_gpus import visible
from graphpipe.training.run_folder.metrics_log import read_log
from graphpipe.training.run_folder.recoveries import Pending, stand_still
from graphpipe.training.train_rank import LOG, METRICS

WORK = "graphpipe.training.train_rank:work"
HOPELESS = ("InvalidInput", "Infeasible", "NonFiniteLoss", "OutOfMemory", "CheckpointCorrupt")
"""Kinds of errors that would come again."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Keeps a training going. `train` runs it to its end."""

    directory: Path
    """Of the run: its configuration and first plan are there."""
    cluster: Cluster
    """All devices."""
    replan: Callable[[Cluster], Plan]
    """Plans for what is left of the cluster, and leaves the plan where the ranks find it."""
    settings: RunSettings
    tell: Callable[[str], None]
    losses: Counter[str] = field(default_factory=Counter[str])
    """How often each device was lost."""
    due: dict[str, float] = field(default_factory=dict[str, float])
    """Devices that are lost now, and when to look whether they are back."""
    recoveries: int = 0
    before: tuple[str, int] = ("", -1)
    """The exception that ended the last life of the ranks, and the step."""

    def train(self, plan: Plan, *, resume: bool) -> Plan:
        """Train from the plan on, and return the last plan.

        Args:
            plan: to begin with.
            resume: go on from the run's last checkpoint.

        Raises:
            RankFailed: a rank failed in a way that would come again, too often, or on the last device.
            Infeasible: no plan fits on the devices that are left.
        """
        while True:
            with self._readmission() as readmission:
                try:
                    self._launch(plan, resume=resume)
                    failure = None
                except RankFailed as error:
                    failure = error
            if failure is None and not readmission.left():
                return plan
            if failure is not None and (self.directory / METRICS).exists():
                self.tell(f"{failure} The results were written before")
                return plan
            done = self._steps_done()
            if failure is None:
                cause, since = f"device {readmission.back[0]} is back", time.time()
                del self.due[readmission.back[0]]
            else:
                cause, since = str(failure), failure.seen
                self._lose(plan, failure, done)
            plan, seconds = self._plan_again()
            names = tuple(plan.cluster.devices[device].name for device in plan.used_devices)
            pending = Pending(since=since, cause=cause, steps_done=done, devices=names, planning_seconds=seconds)
            stand_still(self.directory, pending)
            resume = bool(checkpoints_in(self.directory / CHECKPOINTS))

    def _launch(self, plan: Plan, *, resume: bool) -> None:
        names = [plan.cluster.devices[device].name for device in plan.used_devices]
        launch(
            WORK,
            len(names),
            arguments=[str(self.directory), "resume" * resume, "elastic"],
            port=self.settings.port,
            environment=visible(self.cluster, names) if self.losses else {},
        )

    def _readmission(self) -> Readmission:
        return Readmission(
            directory=self.directory,
            due=self.due if self.settings.readmit_seconds else {},
            every_seconds=self.settings.readmit_seconds,
            environment=lambda name: visible(self.cluster, [name]),
            tell=self.tell,
        )

    def _lose(self, plan: Plan, failure: RankFailed, done: int) -> None:
        lost = [plan.cluster.devices[plan.used_devices[rank]].name for rank in failure.failed]
        repeated = bool(failure.kind) and (failure.what, done) == self.before
        left = len(self.cluster.devices) - len({*self.due, *lost})
        if failure.kind in HOPELESS or repeated or not left or self.recoveries >= self.settings.most_recoveries:
            raise failure
        self.before = (failure.what, done)
        self.recoveries += 1
        for name in lost:
            self.losses[name] += 1
            self.due[name] = time.monotonic() + self.settings.readmit_seconds * 2 ** (self.losses[name] - 1)
        self.tell(f"{failure} Lost: {', '.join(lost)}; {left} devices are left: planning again")

    def _plan_again(self) -> tuple[Plan, float]:
        start = time.perf_counter()
        plan = self.replan(self.cluster.without(self.due.keys()))
        seconds = time.perf_counter() - start
        self.tell(f"planned {len(plan.stages)} stages on {len(plan.used_devices)} devices in {seconds:.2f} s")
        return plan, seconds

    def _steps_done(self) -> int:
        steps = read_log(self.directory / LOG)
        return steps[-1].step if steps else 0
