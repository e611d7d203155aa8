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
from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.warm_up_pairs import communicating_pairs
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.stage.losses.sample_loss import SampleLoss
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
class Evaluated:
    """The result of an evaluation of some samples, the same on every rank."""

    loss: float | None
    """The mean loss over the samples; None without targets."""
    weight: float
    """What the loss counts in a mean over several mini-batches: the number of samples, or the sum of the weights that
    the loss function gives them."""
    outputs: Any
    """The model's output for all samples, in order; None if it was not gathered."""
    targets: Any
    """The targets of all samples, in order; of shares they are gathered with the outputs."""


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
    loss_fn: SampleLoss

    def run(self, batch: MiniBatch, *, gather: bool) -> Evaluated:
        """Compute outputs and loss of a mini-batch.

        Args:
            batch: the mini-batch, the same on every rank.
            gather: give every rank the outputs, and the targets of shares.

        Raises:
            InvalidInput: another rank was given another mini-batch, the outputs cannot be joined, or as
                `check_evaluates`.
            PeerLost, PeerStalled: another rank is gone.
        """
        check_evaluates(self.batches.shapes.first.programs)
        worker, loss_fn = self.worker, self.loss_fn if batch.with_targets else None
        forward = self.schedules(batch.size)
        batch = replace(batch, micro_batches=forward.micro_batches, keeps_outputs=gather)
        batch = self.batches.prepare(batch)
        worker.messages.open(forward.pairs)
        with evaluation_mode(replica.program.module for replica in worker.replicas.values()):
            if loss_fn is not None:
                self.sums.expect()
            with preserve_rng_state(worker.world.device):
                runs = run_step(worker, forward.lowered, StepBatches.of((batch,)), loss_fn)
            outputs, targets = self._gathered(batch, [*runs.values()]) if gather else (None, None)
            if loss_fn is None:
                return Evaluated(loss=None, weight=batch.size, outputs=outputs, targets=targets)
            summary = summarise_step(self.sums, self.plan, [*runs.values()], self.output_stage)
            weight = summary.loss_weight
            loss = (summary.times(batch.size / weight) if weight else summary).loss
            if not weight and not self.loss_fn.weighs_apart(batch):
                weight = self.loss_fn.weight_of(batch)
            return Evaluated(loss=loss, weight=weight, outputs=outputs, targets=targets)

    def _gathered(self, batch: MiniBatch, runs: Sequence[StageReplicaRun]) -> tuple[Any, Any]:
        # Outputs and targets. Every rank has those of a whole mini-batch, and of shares only the ranks with the loss.
        arrange = self.batches.shapes.first.programs[self.output_stage].arrange
        first = [run for run in runs if not run.replica.slot.position]  # of the ranks that share a replica
        world, own = self.worker.world, [piece for run in first for piece in run.results]
        if batch.needs is None or not batch.with_targets:
            return arrange(gather_outputs(world, own)), batch.targets
        pairs = [(rows, (result, batch.target_rows(rows, world.device))) for rows, result in own]
        outputs, targets = gather_outputs(world, pairs)
        return arrange(outputs), targets


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
