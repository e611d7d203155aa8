"""One segment on this rank: several mini-batches without a flush, then the pipeline drains.

prepare | forwards, backwards, reductions and updates, as the schedule mixes them | scalar sum | buffers of replicas
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.plans import Plan
from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.warm_up_pairs import communicating_pairs
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.segments.drained_state import DrainedState
from graphpipe.run.segments.mini_batch_stream import MiniBatchStream
from graphpipe.run.segments.stage_update import StageUpdate
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.step.batch_preparer import BatchPreparer
from graphpipe.run.step.build_worker import align_all_buffers
from graphpipe.run.step.step_summary import (
    ReplicaSummary,
    StepSummary,
    check_finite,
    losses_and_first_bads,
    sum_up,
)
from graphpipe.run.weights.weight_update import WeightUpdate
from graphpipe.run.worker.compiled_step import compiling
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.step_run import run_step
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule import LoweredSchedule
from graphpipe.schedule.lower import lower
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.weight_versions import WeightReads, weight_reads
from graphpipe.schedule.verify_lowered import verify_lowered

_RESTORED = "The weights are those before the segment. Look at this mini-batch, or lower the learning rate."
_SPOILT = "The segment has changed the weights. Go on from a checkpoint, or keep them with rollback=True."
_KEPT = 4
"""Lengths of segments whose schedules are kept: usually two, because the last segment is shorter."""


class SegmentSchedule(NamedTuple):
    """How to run segments of one length."""

    lowered: LoweredSchedule
    reads: WeightReads
    pairs: frozenset[Pair]
    """The pairs of ranks that exchange messages."""


def segment_schedules(
    plan: Plan, gradient_edges: frozenset[int], placement: RankPlacement
) -> Callable[[int], SegmentSchedule]:
    """Return a function from a number of mini-batches to how to run them. It keeps what it returned last."""
    return lru_cache(maxsize=_KEPT)(partial(_segment_schedule, plan, gradient_edges, placement))


def _segment_schedule(
    plan: Plan, gradient_edges: frozenset[int], placement: RankPlacement, mini_batches: int
) -> SegmentSchedule:
    tasks = build_segment(plan, mini_batches)
    lowered = lower(plan, tasks, gradient_edges=gradient_edges)
    verify_lowered(plan, tasks, lowered, gradient_edges)
    return SegmentSchedule(lowered, weight_reads(plan, tasks), communicating_pairs(lowered, placement))


@dataclass(slots=True, kw_only=True)
class TrainSegment:
    """Trains on one segment at a time; all ranks call `run` alike."""

    plan: Plan
    schedules: Callable[[int], SegmentSchedule]
    """Returns the schedule of a segment of so many mini-batches (see `segment_schedules`)."""
    output_stage: int
    worker: StageWorker
    batches: BatchPreparer
    sums: ScalarSum
    loss_fn: LossFunction
    update: WeightUpdate
    """The optimizers of all stages here."""
    stage_updates: dict[int, StageUpdate]
    """The update of each stage on this rank."""
    rolls_back: bool
    """Whether a copy of the state is kept before each segment."""
    compiler: StageCompiler | None = None
    """Compiles the stages; None runs them eagerly."""
    with_norms: bool = True
    """Whether the norms of gradients are computed."""
    gradient_norms: Sequence[float | None] = ()
    """The 2-norm of the gradients of each mini-batch of the last segment; None if it was not computed."""
    loss_scale: None = None
    """None, because losses are not scaled."""

    @property
    def loss_factor(self) -> float:
        """What losses are multiplied by."""
        return 1.0

    def run(self, batches: MiniBatchStream, step: int) -> list[float]:
        """Train on mini-batches, and return the mean loss of each, the same on every rank.

        Args:
            batches: at least one.
            step: number of the first, from 1.

        Raises:
            InvalidInput: another rank was given other mini-batches, or a later one cannot be used.
            NonFiniteLoss: of a loss or gradient, on every rank, after the segment. The weights are those before it, if
                it keeps a copy of them.
            PeerLost, PeerStalled: another rank is gone.
        """
        worker, schedule = self.worker, self.schedules(len(batches))
        worker.monitor.begin_step(step)
        batches.fit(self.batches.prepare(batches[0], count=len(batches)).specs)
        segment = StepBatches.of(batches)
        for update in self.stage_updates.values():
            update.after = partial(self._forget, batches)
        worker.messages.open(schedule.pairs)
        before = self._state() if self.rolls_back else None
        worker.recorder.mini_batches = len(batches)
        worker.recorder.begin()
        try:
            summaries = self._compute(segment, schedule)
            batches.finish()
            for number, summary in enumerate(summaries):
                check_finite(summary, self.plan, step + number, _RESTORED if before is not None else _SPOILT)
        except BaseException:
            self._end(before)
            raise
        align_all_buffers(worker)
        self.batches.user.give()
        worker.recorder.end(worker.placement.devices(worker.world.rank))
        worker.monitor.end_steps(step, len(batches))
        self.gradient_norms = [each.gradient_norm if self.with_norms else None for each in summaries]
        return [summary.loss for summary in summaries]

    def _forget(self, batches: MiniBatchStream) -> None:
        # Another replica of the stage here may have its own task of this update before it.
        batches.forget_before(min(update.done for update in self.stage_updates.values()) - 1)

    def _state(self) -> DrainedState:
        return DrainedState.of([*self.worker.replicas.values()], self.update.optimizers)

    def _compute(self, segment: StepBatches, schedule: SegmentSchedule) -> list[StepSummary]:
        worker, count = self.worker, len(segment.mini_batches)
        for stage, update in self.stage_updates.items():
            update.begin({task: read for task, read in schedule.reads.items() if task.stage == stage}, count)
        self.sums.expect(count)
        compiled = compiling(self.compiler, worker, segment.mini_batches[0])
        with preserve_rng_state(worker.world.device), compiled:
            runs = run_step(worker, schedule.lowered, segment, self.loss_fn)
        for update in self.stage_updates.values():
            update.end()
        own = [self._own_summaries(stage, runs, count) for stage in self.stage_updates]
        by_mini_batch = [[summary for replicas in own for summary in replicas[number]] for number in range(count)]
        return sum_up(self.sums, self.plan, by_mini_batch, self.output_stage)

    def _own_summaries(
        self, stage: int, runs: Mapping[tuple[int, int], StageReplicaRun], count: int
    ) -> list[list[ReplicaSummary]]:
        # By mini-batch, of the replicas of a stage. The leader counts the gradients for all of them.
        update = self.stage_updates[stage]
        summaries: list[list[ReplicaSummary]] = [[] for _ in range(count)]
        norms = [float(norm) ** 2 for norm in update.norms]
        for number, replica in enumerate(update.replicas):
            run = runs[stage, replica.slot.device]
            for mini_batch, (loss, bad) in enumerate(losses_and_first_bads(run, count)):
                norm = 0.0 if number else norms[mini_batch]
                summaries[mini_batch].append(ReplicaSummary(replica.slot, loss, bad, norm))
        return summaries

    def _end(self, before: DrainedState | None) -> None:
        for update in self.stage_updates.values():
            update.end()
        if before is not None:
            before.restore()
