"""One replica of a stage at work: the forward and backward of a micro-batch, and what is kept between them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.program import StageProgram
from graphpipe.plan.sharding import SampleRange
from graphpipe.run.batch import Batch
from graphpipe.run.inbox import Inbox, Values
from graphpipe.run.losses import LossFunction, all_finite, mean_loss
from graphpipe.run.placement import Seat
from graphpipe.run.rng import seeded
from graphpipe.run.values import check_outputs, enter, gradient_of
from graphpipe.schedule import Task


@dataclass(slots=True)
class Flight:
    """A micro-batch between its forward and its backward."""

    received: dict[int, Values]
    """What was received, by edge: leaves, where a gradient goes back."""
    outputs: Values
    loss: Tensor | None
    """Weighed by the micro-batch's share of the mini-batch, so that replicas and micro-batches are summed."""


@dataclass(slots=True, kw_only=True)
class StageReplica:
    """A stage program on a device, and its state during one step."""

    seat: Seat
    stage_name: str
    program: StageProgram
    device: torch.device
    inbox: Inbox
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    outgoing: dict[int, Values] = field(default_factory=dict[int, Values])
    """What the last task has to send, by edge: transfers come right after the task that made them."""
    outgoing_task: Task | None = None
    loss: float | Tensor = 0.0
    """The sum so far of this step's weighed losses, in float64."""
    finite: bool | Tensor = True
    """False once an output of this step was NaN or infinite."""
    results: list[tuple[SampleRange, Any]] = field(default_factory=list[tuple[SampleRange, Any]])
    """The model's outputs and their samples (evaluation only)."""

    def begin(self) -> None:
        """Forget the last step, and whatever an interrupted one left behind."""
        self.flights.clear()
        self.inbox.parcels.clear()
        self.outgoing, self.outgoing_task = {}, None
        self.results = []
        self.loss, self.finite = 0.0, True

    def forward(self, task: Task, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> None:
        """Compute the stage on these samples, with random numbers that depend on the task alone."""
        received = self.inbox.take(task)
        if batch.training:
            self._collect_gradients(received)
        values = {name: batch.input_rows(name, rows, self.device) for name in self.program.model_inputs}
        for by_name in received.values():
            values |= {name: enter(value) for name, value in by_name.items()}
        loss = None
        with seeded(self.device, *batch.key, task.stage, task.micro_batch, self.seat.replica):
            outputs, result = self.program(values)
            check_outputs(outputs, self.program.sends, len(rows), self.stage_name)
            if self.program.is_output and loss_fn is not None:
                loss = mean_loss(loss_fn, result, batch.target_rows(rows, self.device))
        share = len(rows) / batch.size
        self._note(outputs, loss, share, check_finite=batch.check_finite)
        if batch.training:
            self.flights[task.micro_batch] = Flight(received, outputs, None if loss is None else loss * share)
        elif self.program.is_output:
            self.results.append((rows, result))
        self.outgoing_task, self.outgoing = task, self._outputs_by_edge(outputs)

    def backward(self, task: Task) -> None:
        """Add this micro-batch's gradients to the parameters', and hold those of what was received for sending."""
        flight = self.flights.pop(task.micro_batch)
        roots: list[Tensor] = []
        gradients: list[Tensor | None] = []
        for name, gradient in self._sum_over_consumers(task).items():
            if flight.outputs[name].requires_grad:
                roots.append(flight.outputs[name])
                gradients.append(gradient)
        if flight.loss is not None and flight.loss.requires_grad:
            roots.append(flight.loss)
            gradients.append(None)
        if roots:
            torch.autograd.backward(roots, gradients)
        self.outgoing_task = task
        self.outgoing = {
            edge: {name: gradient_of(leaf) for name, leaf in by_name.items() if leaf.requires_grad}
            for edge, by_name in flight.received.items()
        }

    def _collect_gradients(self, received: dict[int, Values]) -> None:
        for edge, by_name in received.items():
            for spec in self.program.receives[edge]:
                by_name[spec.name].requires_grad_(spec.requires_grad)

    def _outputs_by_edge(self, outputs: Values) -> dict[int, Values]:
        return {
            edge: {spec.name: outputs[spec.name].detach() for spec in specs}
            for edge, specs in self.program.sends.items()
        }

    def _sum_over_consumers(self, task: Task) -> Values:
        # In ascending order of edges, so that the sum is the same wherever the consumers run.
        total: Values = {}
        for by_name in self.inbox.take(task).values():
            for name, gradient in by_name.items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def _note(self, outputs: Values, loss: Tensor | None, share: float, *, check_finite: bool) -> None:
        if loss is not None:
            self.loss = self.loss + loss.detach().double() * share
        if check_finite:
            self.finite = all_finite([*outputs.values(), *([] if loss is None else [loss])], self.device) & self.finite
