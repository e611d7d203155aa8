"""Which version of its stage's weights every task of a segment reads, under each weight policy.

Version v of a stage's weights is what its first v updates in the segment have made. In the drawing, a mini-batch is one
micro-batch, and the pipeline has two stages. Under `stash`, stage 0 reads version 0 for the mini-batches 0 and 1.

    stage 0   F0 F1    B0 U0 F2    B1 U1 F3    ...      stash:  v(F2) = 1, v(B2) = 1, while the update U2 makes v = 3
    stage 1      F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 ...      stash:  v(F2) = 2, v(B2) = 2

With t for the task's mini-batch and n for the stage's updates before the forward in its device's list:

    flush           v = t                       the pipeline drains first, so that n = t
    stash           v = n                       PipeDream: max(0, t - w), w = forwards ahead; straight chain: S - 1 - s
    vertical-sync   v = min n over all stages   PipeDream: max(0, t - S + 1). Fixed when t's first micro-batch arrives
    double-buffer   v = max(0, t - 1)           PipeDream-2BW
    moving-average  forward: version n; backward: version n as reconstructed from the newest, by the updates since then
    predict         forward: version n, predicted ahead by the updates until t's own; backward: the newest

Narayanan et al., PipeDream (SOSP 2019), section 3.3; Narayanan et al., PipeDream-2BW (ICML 2021), section 3.1; Guan et
al., PipeOptim and XPipe; Chen et al., SpecTrain (arXiv 1809.02839); Unnikrishnan and Parhi, LayerPipe2 (2025).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.schedule.schedule import Schedule, StageTask


class WeightRead(NamedTuple):
    """Which weights a task reads."""

    version: int
    """Number of the stage's updates in the segment that made the weights."""
    ahead: int = 0
    """Updates by which the weights are predicted ahead of that version (the horizon); 0: they are not predicted. Under
    XPipe a prediction is made once, by the first forward that reads it, and kept for the others with the same values.
    Negative: they are reconstructed, so many updates before that version."""


WeightReads = Mapping[StageTask, WeightRead]
"""Reads of every task but updates: forwards, whole backwards, input gradients and weight gradients."""


def weight_reads(plan: Plan, schedule: Schedule) -> WeightReads:
    """Return which weights every task of a segment reads. All replicas of a stage read the same versions.

    Args:
        plan: for its weight policy and predictor.
        schedule: of a segment, from `build_segment`, or of one mini-batch without updates.
    """
    lists = [
        [task for task in schedule.devices[stage.devices[0]] if task.stage == number]
        for number, stage in enumerate(plan.stages)
    ]
    newest: dict[StageTask, int] = {}
    for tasks in lists:
        updates = 0
        for task in tasks:
            newest[task] = updates
            updates += task.kind == "U"
    rule = _Rule(plan, newest, schedule.mini_batches)
    return {task: rule.read(task) for tasks in lists for task in tasks if task.kind != "U"}


@dataclass(slots=True)
class _Rule:
    plan: Plan
    newest: Mapping[StageTask, int]
    """Number of updates of a task's stage before the task, in its device's list."""
    mini_batches: int

    def read(self, task: StageTask) -> WeightRead:
        """Return which weights a task reads."""
        mini_batch = task.micro_batch // self.plan.micro_batches(task.stage)
        match self.plan.weights:
            case "flush":
                return WeightRead(mini_batch)
            case "stash":
                return WeightRead(self.newest[StageTask("F", task.stage, task.micro_batch)])
            case "vertical-sync":
                return WeightRead(min(self._at_first_forwards(mini_batch)))
            case "double-buffer":
                return WeightRead(max(0, mini_batch - 1))
            case "moving-average":
                return self._reconstructed(task)
            case "predict":
                return self._predicted(task, mini_batch)

    def _at_first_forwards(self, mini_batch: int) -> Iterator[int]:
        for stage in range(len(self.plan.stages)):
            yield self.newest[StageTask("F", stage, mini_batch * self.plan.micro_batches(stage))]

    def _reconstructed(self, task: StageTask) -> WeightRead:
        if task.kind == "F":
            return WeightRead(self.newest[task])
        # A weight gradient reads what its other half has read.
        newest = self.newest[task if task.kind == "B" else StageTask("I", task.stage, task.micro_batch)]
        return WeightRead(newest, self.newest[StageTask("F", task.stage, task.micro_batch)] - newest)

    def _predicted(self, task: StageTask, mini_batch: int) -> WeightRead:
        """Return what a task reads if weights are predicted.

        PipeOptim and XPipe predict the weights that the gradient will update: horizon t - n. On a chain of N stages
        whose mini-batches are one micro-batch, stage k has horizon N - 1 - k. SpecTrain predicts the weights at the
        end of the mini-batch's way back, for the forward and for the backward: floor(k / 2) micro-batches later.
        """
        target = mini_batch
        if self.plan.predictor == "spectrain":
            later = task.micro_batch + self._from_first(task.stage) // 2
            target = min(later // self.plan.micro_batches(task.stage), self.mini_batches - 1)
        read_at = task
        if self.plan.predictor == "xpipe" and task.kind == "F":
            read_at = StageTask("F", task.stage, mini_batch * self.plan.micro_batches(task.stage))
        if task.kind == "W":  # It reads what its other half has read.
            read_at = StageTask("I", task.stage, task.micro_batch)
        version = self.newest[read_at]
        return WeightRead(version, max(0, target - version))

    def _from_first(self, stage: int) -> int:
        return self.plan.depth - 1 - self.plan.stages_after[stage]
