"""Evaluation: forward only, in evaluation mode, for any number of samples."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from graphpipe.model.split.module_stage import check_evaluates
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.warm_up_pairs import Pair, communicating_pairs
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.step.batch_preparer import BatchPreparer
from graphpipe.run.step.gather_outputs import gather_outputs
from graphpipe.run.step.step_summary import summarise_step
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.step_run import run_step
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule import LoweredSchedule, Schedule
from graphpipe.schedule.lower import lower

_KEPT = 4
"""Sizes of mini-batches whose schedules are kept: usually two, because the last mini-batch is smaller."""


@dataclass(frozen=True, slots=True)
class ForwardSchedule:
    """How to evaluate some number of samples."""

    micro_batches: tuple[int, ...]
    """Samples of one micro-batch, by stage."""
    lowered: LoweredSchedule
    pairs: frozenset[Pair]
    """The pairs of ranks that exchange messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Computes the model's output and loss without changing anything; all ranks call `run` alike."""

    plan: Plan
    schedules: Callable[[int], ForwardSchedule]
    """Returns how to evaluate so many samples (see `forward_schedules`)."""
    output_stage: int
    worker: StageWorker
    batches: BatchPreparer
    sums: ScalarSum
    loss_fn: LossFunction

    def run(self, batch: MiniBatch, *, gather: bool) -> tuple[float | None, Any]:
        """Return the mean loss, None without targets, and the outputs, None if they are not gathered.

        Raises:
            InvalidInput: another rank was given another mini-batch, the outputs cannot be joined, or as
                `check_evaluates`.
            PeerLost, PeerStalled: another rank is gone.
        """
        check_evaluates(self.batches.shapes.first.programs)
        worker, loss_fn = self.worker, None if batch.targets is None else self.loss_fn
        forward = self.schedules(batch.size)
        batch = replace(batch, micro_batches=forward.micro_batches, keeps_outputs=gather)
        batch = self.batches.prepare(batch)
        worker.messages.open(forward.pairs)
        with evaluation_mode(replica.program.module for replica in worker.replicas.values()):
            if loss_fn is not None:
                self.sums.expect()
            with preserve_rng_state(worker.world.device):
                runs = run_step(worker, forward.lowered, StepBatches.of((batch,)), loss_fn)
            return self._results(batch.size, [*runs.values()], with_loss=loss_fn is not None, gather=gather)

    def _results(
        self, size: int, runs: Sequence[StageReplicaRun], *, with_loss: bool, gather: bool
    ) -> tuple[float | None, Any]:
        own = [piece for run in runs for piece in run.results]
        arrange = self.batches.shapes.first.programs[self.output_stage].arrange
        outputs = arrange(gather_outputs(self.worker.world, own)) if gather else None
        if not with_loss:
            return None, outputs
        summary = summarise_step(self.sums, self.plan, runs, self.output_stage)
        return (summary.times(size / summary.loss_weight) if summary.loss_weight else summary).loss, outputs


def stretch(plan: Plan, samples: int) -> Plan:
    """Return the plan with every stage that needs the whole batch taking all of `samples` at once."""
    stages = tuple(
        replace(stage, micro_batch=samples) if any(plan.graph[name].whole_batch for name in stage.ops) else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def forward_schedules(plan: Plan, schedule: Schedule, placement: RankPlacement) -> Callable[[int], ForwardSchedule]:
    """Return a function from a number of samples to how they are evaluated. It keeps what it returned last."""
    return lru_cache(maxsize=_KEPT)(partial(_forward_schedule, plan, schedule, placement))


def _forward_schedule(plan: Plan, schedule: Schedule, placement: RankPlacement, samples: int) -> ForwardSchedule:
    stretched = stretch(plan, samples)
    lowered = lower(stretched, schedule, batch_size=samples, forward_only=True)
    sizes = tuple(stage.micro_batch for stage in stretched.stages)
    return ForwardSchedule(sizes, lowered, communicating_pairs(lowered, placement))


@contextmanager
def evaluation_mode(modules: Iterable[nn.Module]) -> Generator[None]:
    """Put the modules into evaluation mode without gradients, and every submodule back into its own mode after."""
    modes = [(module, module.training) for root in modules for module in root.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
