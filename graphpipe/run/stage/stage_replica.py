"""One replica of a stage at work: the tasks of its micro-batches, and what is kept between them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans.sharding import SampleRange, count_micro_batches
from graphpipe.run.comm.rank_placement import Seat
from graphpipe.run.device.precision import casting
from graphpipe.run.device.rng import number_of, seed
from graphpipe.run.faults.status_reporter import Watch
from graphpipe.run.stage.edge_values import check_outputs, enter
from graphpipe.run.stage.loss import LossFunction, is_exact, mean_loss, sum_of
from graphpipe.run.stage.micro_batch import Computed, Flight
from graphpipe.run.stage.mini_batch import Batch
from graphpipe.run.stage.receive_buffers import Inbox, Values
from graphpipe.run.stage.recompute import Forgetful
from graphpipe.run.stage.releasable_tensors import Shelf
from graphpipe.run.stage.split_backward import WeightHalf
from graphpipe.run.weights.replica_sync import Engine
from graphpipe.schedule import Task

_ROUNDING = 1e-6


Form = tuple[StageProgram, Forgetful | None]


@dataclass(slots=True, kw_only=True)
class StageReplica:
    """A stage program on a device, and its state during one step."""

    seat: Seat
    stage_name: str
    program: StageProgram
    device: torch.device
    inbox: Inbox
    watch: Watch
    parameters: Sequence[nn.Parameter]
    """Of the program between steps, looked up once: FSDP's shards, where it cuts them up."""
    engine: Engine
    """Of its stage on this rank."""
    last: Task | None
    """Its last backward, or weight half, of a step."""
    precision: str = "fp32"
    forgetful: Forgetful | None = None
    """Given, forwards are forgotten, and computed again for the backward."""
    splits: bool = False
    """Whether backwards come in two halves."""
    room: float | None = None
    """Samples that may be in flight, which is asserted; None asserts nothing."""
    kept: float = 1.0
    """What a sample counts for between the two halves of its backward: the share of its activations that is kept."""
    forms: dict[Hashable, Form] = field(default_factory=dict[Hashable, Form])
    """What `program` and `forgetful` were for inputs of other shapes, by these."""
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    """Between forward and backward."""
    halves: dict[int, WeightHalf] = field(default_factory=dict[int, WeightHalf])
    """Between the two halves of a backward."""
    held: dict[int, float] = field(default_factory=dict[int, float])
    """Samples in flight, by micro-batch: from the forward to the end of the backward, of both its halves. Only where
    there is a limit to assert."""
    outgoing: dict[int, Values] = field(default_factory=dict[int, Values])
    """What the last task has to send, by edge: transfers come right after the task that made them."""
    outgoing_task: Task | None = None
    losses: list[tuple[Tensor, float]] = field(default_factory=list[tuple[Tensor, float]])
    """Of this step so far: each micro-batch's loss (0-d) and its share of the mini-batch."""
    sums: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])
    """By micro-batch of this step: a number for every output (0-d), not finite if anything in it was not."""
    seeds: list[int] = field(default_factory=list[int])
    """Of the random numbers of each micro-batch of this step; empty before the first task."""
    results: list[tuple[SampleRange, Any]] = field(default_factory=list[tuple[SampleRange, Any]])
    """The model's outputs and their samples (evaluation only)."""
    frees: dict[int, bool] = field(default_factory=dict[int, bool])
    """Whether the input half may let go of what the weight half does not read, by how many tensors a forward saved for
    both; tried once each."""
    whole: str | None = None
    """Why a backward in two halves was done whole in the first; empty if it was not; None before there was one."""

    @property
    def module(self) -> nn.Module:
        """All that the stage computes with."""
        return self.program.module

    def begin(self) -> None:
        """Forget the last step, and whatever an interrupted one left behind."""
        self.flights.clear()
        self.halves.clear()
        self.held.clear()
        self.inbox.parcels.clear()
        self.outgoing, self.outgoing_task = {}, None
        self.results = []
        self.losses.clear()
        self.sums.clear()
        self.seeds = []

    def do(self, task: Task, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> None:
        """Do a task of these samples, and hold what it has to send."""
        self.outgoing = {}  # messages hold what they send; nobody else needs it while this task computes
        match task.kind:
            case "F":
                self.outgoing = self._forward(task, rows, batch, loss_fn)
            case "B":
                self.outgoing = self._backward(task)
            case "I":
                self.outgoing = self._input_half(task)
            case "W":
                self._weight_half(task)
        self.outgoing_task = task

    def _forward(self, task: Task, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> dict[int, Values]:
        received, samples = self.inbox.take(task), len(rows)
        if batch.training and self.room is not None:
            self._take_off(task, samples, self.room)
        if batch.training and received:
            self._collect_gradients(received, batch)
        flight = Flight(
            received=received,
            share=samples / batch.size,
            scale=batch.loss_scale,
            compute=partial(self._compute, task, received, rows, batch, loss_fn),
            forgetful=self.forgetful if batch.training else None,
            shelf=Shelf(self._frees) if self.splits and batch.training else None,
        )
        outputs, result, loss = flight.forward()
        self._note(task, outputs, loss, flight.share, check_finite=batch.check_finite)
        if batch.training:
            self.flights[task.micro_batch] = flight
        elif self.program.is_output:
            self.results.append((rows, result))
        if not (sends := self.program.sends):
            return {}
        return {edge: {spec.name: outputs[spec.name].detach() for spec in specs} for edge, specs in sends.items()}

    def _backward(self, task: Task) -> dict[int, Values]:
        flight = self.flights.pop(task.micro_batch)
        flight.backward(self._sum_over_consumers(task), self.engine.last_backward if task == self.last else None)
        self._land(task)
        return flight.gradients()

    def _input_half(self, task: Task) -> dict[int, Values]:
        flight = self.flights.pop(task.micro_batch)
        half = flight.input_half(self._sum_over_consumers(task), check=self.whole is None)
        self.halves[task.micro_batch], self.whole = half, half.whole
        if self.room is not None:
            self.held[task.micro_batch] *= self.kept
        return flight.gradients()

    def _weight_half(self, task: Task) -> None:
        half = self.halves.pop(task.micro_batch)
        half.run()
        if half.shelf is not None:
            self.frees.setdefault(half.shelf.saved, not half.shelf.mistaken)
        self._land(task)

    def _frees(self, saved: int) -> bool:
        return self.frees.get(saved, False)

    def _compute(
        self,
        task: Task,
        received: dict[int, Values],
        rows: SampleRange,
        batch: Batch,
        loss_fn: LossFunction | None,
    ) -> Computed:
        values = batch.input_rows(self.program.model_inputs, rows, self.device)
        for by_name in received.values():
            values |= {name: enter(value) for name, value in by_name.items()}
        if self.forgetful is not None and not torch.is_grad_enabled():
            # The stage may write into its inputs, which are needed once more.
            values = {name: value.clone() for name, value in values.items()}
        # Random numbers depend on the task alone.
        if not self.seeds:
            self.seeds = self._seeds(task.stage, batch)
        seed(self.device, self.seeds[task.micro_batch])
        if self.precision == "fp32":
            return self._run(values, rows, batch, loss_fn)
        with casting(self.precision, self.device):
            return self._run(values, rows, batch, loss_fn)

    def _seeds(self, stage: int, batch: Batch) -> list[int]:
        # All at once: between two tasks each would take many times as long, with what it needs in no cache.
        count = count_micro_batches(batch.size, batch.micro_batches[stage])
        return [number_of(*batch.key, stage, index, self.seat.replica) for index in range(count)]

    def _run(self, values: Values, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> Computed:
        program, watch, loss = self.program, self.watch, None
        outputs, result = program(values)
        if watch.injector.armed:
            outputs = {name: watch.spoil("forward", value) for name, value in outputs.items()}
        if program.sends:
            check_outputs(outputs, {edge: batch.specs[edge] for edge in program.sends}, len(rows), self.stage_name)
        if program.is_output and loss_fn is not None:
            loss = mean_loss(loss_fn, result, batch.target_rows(rows, self.device))
            if watch.injector.armed:
                loss = watch.spoil("forward", loss)
        return Computed(outputs, result, loss)

    def _take_off(self, task: Task, samples: int, room: float) -> None:
        self.held[task.micro_batch] = samples
        held = sum(self.held.values())
        assert held <= room + _ROUNDING, (
            f"stage '{self.stage_name}', replica {self.seat.replica}: with {task} {held:g} samples are in flight, "
            f"the plan allows {room:g}"
        )

    def _collect_gradients(self, received: dict[int, Values], batch: Batch) -> None:
        for edge, by_name in received.items():
            for spec in batch.specs[edge]:
                by_name[spec.name].requires_grad_(spec.requires_grad)

    def _sum_over_consumers(self, task: Task) -> Values:
        # In ascending order of edges, so that the sum is the same wherever the consumers run.
        total: Values = {}
        for by_name in self.inbox.take(task).values():
            for name, gradient in by_name.items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def _land(self, task: Task) -> None:
        self.held.pop(task.micro_batch, None)
        if self.watch.injector.armed:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.watch.spoil("backward", parameter.grad)

    def _note(self, task: Task, outputs: Values, loss: Tensor | None, share: float, *, check_finite: bool) -> None:
        seen = [sum_of(value) for value in outputs.values() if not is_exact(value)] if check_finite and outputs else []
        if loss is not None:
            loss = loss.detach()
            self.losses.append((loss, share))
            seen.append(loss)
        if check_finite:
            self.sums[task.micro_batch] = seen
