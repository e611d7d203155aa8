"""One training step on this rank: compute the gradients, sum up over all ranks, update the weights.

prepare | forwards, backwards and reductions | scalar sum | optimizer | buffers of replicas
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.plans import Plan
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.device.precision import LossScale
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.step.batch_preparer import BatchPreparer
from graphpipe.run.step.build_worker import align_all_buffers
from graphpipe.run.step.step_summary import StepSummary, check_finite, summarise_step
from graphpipe.run.weights.weight_update import WeightUpdate
from graphpipe.run.worker.compiled_step import compiling
from graphpipe.run.worker.smaller_batches import SmallerStep
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.step_run import run_step
from graphpipe.run.worker.sum_positions import sum_positions
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule import LoweredSchedule


@dataclass(slots=True, kw_only=True)
class TrainStep:
    """Trains on one mini-batch at a time; all ranks call `run` alike."""

    plan: Plan
    lowered: LoweredSchedule
    smaller: Callable[[int], SmallerStep]
    """Returns how to train on fewer samples than the plan's."""
    output_stage: int
    worker: StageWorker
    batches: BatchPreparer
    sums: ScalarSum
    loss_fn: LossFunction
    update: WeightUpdate
    check_finite: bool
    """Whether gradients are checked as well as the loss."""
    loss_scale: LossScale | None
    """The factor of the next step's loss; None if the loss is not scaled."""
    compiler: StageCompiler | None = None
    """Compiles the stages; None runs them eagerly."""
    gradient_norms: Sequence[float | None] = ()
    """The 2-norm of the last step's gradients, before clipping; None if it was not computed or is not finite."""

    @property
    def loss_factor(self) -> float:
        """What the next step's loss is multiplied by."""
        return 1.0 if self.loss_scale is None else self.loss_scale.factor

    def run(self, batch: MiniBatch, step: int) -> float:
        """Train on a mini-batch and return its mean loss, the same on every rank.

        Args:
            batch: the mini-batch.
            step: its number, from 1.

        Raises:
            InvalidInput: another rank was given another mini-batch, or the stages cannot be built for its shapes.
            NonFiniteLoss: of a loss or gradient, on every rank, before any weight changes.
            PeerLost, PeerStalled: another rank is gone.
        """
        monitor, recorder = self.worker.monitor, self.worker.recorder
        monitor.begin_step(step)
        batch = self.batches.prepare(batch)
        if batch.size == self.plan.batch_size:
            recorder.begin()
            loss = self._run(batch, self.lowered, step)
            recorder.end(self._devices)
        else:
            with self._smaller(batch.size) as lowered:
                loss = self._run(batch, lowered, step)
        monitor.end_step()
        return loss

    def _run(self, batch: MiniBatch, lowered: LoweredSchedule, step: int) -> float:
        summary = self._compute(batch, lowered)
        self.gradient_norms = [norm if self._with_norms and math.isfinite(norm := summary.gradient_norm) else None]
        overflown = self.loss_scale is not None and not self.loss_scale.exhausted and summary.overflown
        if not overflown:
            check_finite(summary, self.plan, step)
        self._update(summary, overflown=overflown)
        align_all_buffers(self.worker)
        self.batches.user.give()
        return summary.loss

    @contextmanager
    def _smaller(self, size: int) -> Generator[LoweredSchedule]:
        # Such a step is not recorded: a trace is one of the plan.
        worker, smaller = self.worker, self.smaller(size)
        worker.messages.open(smaller.pairs)
        recording, worker.recorder.on = worker.recorder.on, False
        lasts = [(replica, replica.last) for replica in worker.replicas.values()]
        try:
            for (stage, device), replica in worker.replicas.items():
                replica.last = smaller.lasts.get((stage, device))
            yield smaller.lowered
        finally:
            worker.recorder.on = recording
            for replica, last in lasts:
                replica.last = last

    def _compute(self, batch: MiniBatch, lowered: LoweredSchedule) -> StepSummary:
        worker = self.worker
        self.update.clear()
        self.sums.expect()
        with preserve_rng_state(worker.world.device), compiling(self.compiler, worker, batch):
            runs = run_step(worker, lowered, StepBatches.of((batch,)), self.loss_fn)
            sum_positions(worker)
        if self.loss_scale is not None:
            self.update.scale_gradients(1 / self.loss_scale.factor)
        summary = summarise_step(self.sums, self.plan, [*runs.values()], self.output_stage, with_norms=self._with_norms)
        if not summary.loss_weight:
            return summary
        factor = batch.size / summary.loss_weight  # see `sample_loss`
        if factor == 1:
            return summary
        self.update.scale_gradients(factor)
        return summary.times(factor)

    def _update(self, summary: StepSummary, *, overflown: bool) -> None:
        worker = self.worker
        worker.monitor.enter("optimizer")
        if leaders := worker.leaders():
            with worker.recorder.span(self._devices[0], "optimizer", leaders[0].slot.stage):
                if not overflown:
                    self.update.step(summary.gradient_norm)
        if self.loss_scale is not None:
            self.loss_scale = self.loss_scale.after(finite=not overflown)

    @property
    def _with_norms(self) -> bool:
        return self.update.clip_norm is not None or self.check_finite or self.loss_scale is not None

    @property
    def _devices(self) -> tuple[int, ...]:
        return self.worker.placement.devices(self.worker.world.rank)
