"""The forward of a micro-batch on a stage replica: inputs, random numbers, precision, checks and the loss."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.autocast import autocast_context
from graphpipe.model.shards.logits.divided_logits import before_loss
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.device.rng import seed
from graphpipe.run.stage.compiled_gradients import check_compiled
from graphpipe.run.stage.edge_values import check_outputs, check_result, enter
from graphpipe.run.stage.given_order import GivenOrder
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.losses.divided_forward import check_divided, mixing_of, without_gradients
from graphpipe.run.stage.losses.parts_of_samples import Samples, is_low
from graphpipe.run.stage.losses.sample_loss import SampleLoss, check_pair, loss_of
from graphpipe.run.stage.micro_batch import Computed
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.stage.stage_replica import StageReplica

_DIVIDED = 2
"""Micro-batches of the first step that every stage also computes in parts. More would take long."""


@dataclass(slots=True)  # One is made for every task, and a frozen one would take a microsecond longer.
class StageForward:
    """One forward, which can be computed again. It does not refer to the run, which refers to it."""

    replica: StageReplica
    """Computes the forward."""
    received: dict[int, NamedTensors]
    """The values from other stages, by edge."""
    rows: SampleRange
    """The samples, by their positions in the mini-batch."""
    batch: MiniBatch
    """The mini-batch of the samples."""
    loss_fn: LossFunction | None
    """The loss function of the step; None computes no loss."""
    seed: int
    """The seed of the forward's random numbers, which depend only on the task."""
    loss_weights: dict[int, Tensor]
    """Gets the weight that the loss function returns with a sum, by the first sample of the micro-batch."""

    def compute(self) -> Computed:
        """Compute the outputs of the stage, the model's output and the loss."""
        replica = self.replica
        # A stage with the whole mini-batch sees the samples as they were given.
        order = self.batch.given_order if len(self.rows) == self.batch.size else None
        batch = self.batch if order is None else self.batch.as_given
        values = batch.input_rows(replica.program.model_inputs, self.rows, replica.device)
        for by_name in self.received.values():
            entered = {name: enter(value) for name, value in by_name.items()}
            values |= entered if order is None else order.given(entered)
        if replica.recomputation is not None and not torch.is_grad_enabled():
            # The stage may write into its inputs, and the backward needs them again.
            values = {name: value.clone() for name, value in values.items()}
        seed(replica.device, self.seed)
        if replica.precision == "fp32":
            return self._run(values, batch, order)
        with autocast_context(replica.precision, replica.device):
            return self._run(values, batch, order)

    def _run(self, values: NamedTensors, batch: MiniBatch, order: GivenOrder | None) -> Computed:
        # The mini-batch and the values are in the given order, if there is one.
        replica, loss = self.replica, None
        program, monitor = replica.program, replica.monitor
        given = self._to_be_divided(values)
        if replica.compares and torch.is_grad_enabled():
            replica.compares = False
            check_compiled(program, values, self.seed, replica.device, replica.stage_name, splits=replica.splits)
            seed(replica.device, self.seed)
        reads_logits = program.is_output and self.loss_fn is not None and (batch.training or not batch.keeps_outputs)
        with before_loss() if reads_logits else nullcontext():
            outputs, result = program(values)
        if order is not None:
            outputs = order.placed(outputs)
        if monitor.injector.armed:
            outputs = {name: monitor.corrupt("forward", value) for name, value in outputs.items()}
        if program.sends:
            specs = {edge: batch.specs[edge] for edge in program.sends}
            check_outputs(outputs, specs, len(self.rows), replica.stage_name)
            # One copy for all consumers, and the graph keeps this one. A send would keep another for each of them.
            outputs = {name: value.contiguous() for name, value in outputs.items()}
        if batch.training and program.output_dtypes:
            check_result(result, program.output_dtypes, replica.stage_name)
        if program.is_output and self.loss_fn is not None:
            loss, weight = loss_of(self.loss_fn, result, batch, self.rows, replica.device)
            if weight is not None:
                check_pair(segment=batch.training and replica.update is not None)
                self.loss_weights[self.rows.start] = weight
            if monitor.injector.armed:
                loss = monitor.corrupt("forward", loss)
        if given is not None:  # after the loss, which says itself if it is no mean over samples
            mixed = check_divided(program, given, self._known_loss(), replica.stage_name)
            outputs = outputs if mixed is None else without_gradients(outputs, mixed)
        return Computed(outputs, result, loss)

    def _to_be_divided(self, values: NamedTensors) -> Samples | None:
        # In the first step: the samples of a part of the mini-batch, to see whether the stage mixes them.
        replica, batch, rows = self.replica, self.batch, self.rows
        if not batch.training or batch.step != 1 or len(rows) == batch.size or not torch.is_grad_enabled():
            return None
        named = None if replica.sync.traits.shards_parameters else mixing_of(replica.program)
        number = rows.start // batch.micro_batches[replica.slot.stage]
        if named is None or (number >= _DIVIDED and not named):
            return None
        first = rows.stop if rows.stop + len(rows) <= batch.size else rows.start - len(rows)
        others = SampleRange(first, first + len(rows))
        names = replica.program.model_inputs if batch.needs is None and first >= 0 else ()
        return Samples(
            {name: self._single(value.detach().clone()) for name, value in values.items()},
            batch.target_rows(rows, replica.device) if self._known_loss() is not None else None,
            len(rows),
            {name: self._single(each) for name, each in batch.input_rows(names, others, replica.device).items()},
            first=number == 0,
        )

    def _single(self, value: Tensor) -> Tensor:
        # Autocast, which is off where samples are divided, has made values of 16 bits.
        return value.float() if self.replica.precision != "fp32" and is_low(value) else value

    def _known_loss(self) -> Callable[[Any, Any], Any] | None:
        if not self.replica.program.is_output or self.loss_fn is None:
            return None
        loss_fn = self.loss_fn
        return (loss_fn.weighted or loss_fn.function) if isinstance(loss_fn, SampleLoss) else loss_fn
