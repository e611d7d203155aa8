"""One replica of a stage: runs the tasks of its micro-batches, and keeps the state between them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from graphpipe.model.autocast import autocast_context
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans.sharding import SampleRange, count_micro_batches
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.device.rng import derive_seed, seed
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.edge_values import check_outputs, check_result, enter
from graphpipe.run.stage.loss import LossFunction, is_exact, mean_loss, sum_of
from graphpipe.run.stage.micro_batch import Computed, MicroBatch
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.offload import OffloadedTensors, Offloading
from graphpipe.run.stage.receive_buffers import NamedTensors, ReceiveBuffers
from graphpipe.run.stage.recompute import Recomputation
from graphpipe.run.stage.releasable_tensors import ReleasableTensors
from graphpipe.run.stage.split_backward import WeightHalf
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.schedule import StageTask

_ROUNDING = 1e-6


Form = tuple[StageProgram, Recomputation | None]
"""The program of a replica for inputs of one shape, and its recomputation."""


@dataclass(slots=True, kw_only=True)
class StageReplica:
    """A stage program on a device, and its state during one step."""

    slot: ReplicaSlot
    stage_name: str
    program: StageProgram
    device: torch.device
    received: ReceiveBuffers
    monitor: StatusReporter
    parameters: Sequence[nn.Parameter]
    """The program's parameters between steps, which are shards under FSDP. Looked up once."""
    sync: ReplicaSync
    """Synchronises the replicas of its stage."""
    last: StageTask | None
    """The last backward, or weight half, of a step."""
    precision: str = "fp32"
    recomputation: Recomputation | None = None
    """If given, forwards do not record a graph, and backwards compute them again."""
    offloading: Offloading | None = None
    """If given, some operators' saved tensors rest in the memory of the node between forward and backward."""
    splits: bool = False
    """Whether backwards are split into two halves."""
    in_flight_limit: float | None = None
    """The most samples that may be in flight, which is asserted. None turns the check off."""
    kept_share: float = 1.0
    """Share of a sample's activations that is kept between the two halves of its backward."""
    forms: dict[Hashable, Form] = field(default_factory=dict[Hashable, Form])
    """Earlier values of `program` and `recomputation`, by the shapes of the inputs."""
    micro_batches: dict[int, MicroBatch] = field(default_factory=dict[int, MicroBatch])
    """Micro-batches between their forward and their backward, by number."""
    halves: dict[int, WeightHalf] = field(default_factory=dict[int, WeightHalf])
    """Weight halves that have not run yet, by micro-batch."""
    samples_in_flight: dict[int, float] = field(default_factory=dict[int, float])
    """Samples in flight, by micro-batch, from the forward to the end of the backward (of the weight half, if it is
    split). Kept only if `in_flight_limit` is set."""
    outgoing: dict[int, NamedTensors] = field(default_factory=dict[int, NamedTensors])
    """Values that the last task has to send, by edge. They are sent right after the task."""
    outgoing_task: StageTask | None = None
    losses: list[tuple[Tensor, float]] = field(default_factory=list[tuple[Tensor, float]])
    """Losses (0-d) of this step's micro-batches, each with its share of the mini-batch."""
    sums: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])
    """By micro-batch of this step: the sum of each output (0-d). It is not finite if any element is not."""
    seeds: dict[tuple[int, ...], list[int]] = field(default_factory=dict[tuple[int, ...], list[int]])
    """Seeds of random numbers, one per micro-batch, by the key of the mini-batch. Made at its first task."""
    results: list[tuple[SampleRange, Any]] = field(default_factory=list[tuple[SampleRange, Any]])
    """The model's outputs, with their samples (only in an evaluation that keeps them)."""
    releases: dict[int, bool] = field(default_factory=dict[int, bool])
    """Whether the input half may release tensors (see `ReleasableTensors`), by the number of tensors that the forward
    saved. Each number is tried once."""
    weights: StageWeights | None = None
    """Which weights each task reads; None under a policy that flushes, where all tasks read the parameters."""
    update: Callable[[int], None] | None = None
    """Updates the weights after a mini-batch of a segment; None under a policy that flushes."""
    whole: str | None = None
    """Why the last backward of a split stage ran whole. Empty if it was split, None before the first backward."""

    @property
    def module(self) -> nn.Module:
        """The stage's module, with its parameters and buffers."""
        return self.program.module

    def begin(self) -> None:
        """Drop the state of the last step, which may have been interrupted."""
        self.micro_batches.clear()
        self.halves.clear()
        self.samples_in_flight.clear()
        self.received.by_task.clear()
        self.outgoing, self.outgoing_task = {}, None
        self.results = []
        self.losses.clear()
        self.sums.clear()
        self.seeds.clear()

    def do(self, task: StageTask, rows: SampleRange, batch: MiniBatch, loss_fn: LossFunction | None) -> None:
        """Run a task on the given samples, and keep the values that it has to send."""
        self.outgoing = {}  # frees the last task's values, because messages keep what they still send
        if self.weights is None or not batch.training:
            self._do(task, rows, batch, loss_fn)
        else:
            with self.weights.reading(task):
                self._do(task, rows, batch, loss_fn)
        self.outgoing_task = task

    def _do(self, task: StageTask, rows: SampleRange, batch: MiniBatch, loss_fn: LossFunction | None) -> None:
        match task.kind:
            case "F":
                self.outgoing = self._forward(task, rows, batch, loss_fn)
            case "B":
                self.outgoing = self._backward(task)
            case "I":
                self.outgoing = self._input_half(task)
            case "W":
                self._weight_half(task)
            case "U":
                assert self.update is not None, "updates are tasks only in a segment"
                self.update(task.micro_batch)

    def _forward(
        self, task: StageTask, rows: SampleRange, batch: MiniBatch, loss_fn: LossFunction | None
    ) -> dict[int, NamedTensors]:
        received, samples = self.received.take(task), len(rows)
        if batch.training and self.in_flight_limit is not None:
            self._check_in_flight(task, samples, self.in_flight_limit)
        if batch.training and received:
            self._require_gradients(received, batch)
        micro_batch = MicroBatch(
            received=received,
            share=samples / batch.size,
            scale=batch.loss_scale,
            compute=partial(self._compute, task, received, rows, batch, loss_fn),
            recomputation=self.recomputation if batch.training else None,
            saved_tensors=ReleasableTensors(self._releases) if self.splits and batch.training else None,
            offloaded=self._offloads(task, training=batch.training),
        )
        outputs, result, loss = micro_batch.forward()
        self._record(task, outputs, loss, micro_batch.share, check_finite=batch.check_finite)
        if batch.training:
            self.micro_batches[task.micro_batch] = micro_batch
        elif self.program.is_output and batch.keeps_outputs:
            self.results.append((rows, result))
        if not (sends := self.program.sends):
            return {}
        return {edge: {spec.name: outputs[spec.name].detach() for spec in specs} for edge, specs in sends.items()}

    def _offloads(self, task: StageTask, *, training: bool) -> OffloadedTensors | None:
        if self.offloading is None:
            return None
        return self.offloading.begin(task.micro_batch, self.module) if training else self.offloading.pause()

    def move(self, kind: Literal["evict", "fetch"], micro_batch: int) -> None:
        """Start to copy what the stage offloads of a micro-batch to the memory of the node, or back."""
        self.micro_batches[micro_batch].move(kind)

    def _backward(self, task: StageTask) -> dict[int, NamedTensors]:
        micro_batch = self.micro_batches.pop(task.micro_batch)
        micro_batch.backward(self._sum_over_consumers(task), self.sync.last_backward if task == self.last else None)
        self._finish(task)
        return micro_batch.gradients()

    def _input_half(self, task: StageTask) -> dict[int, NamedTensors]:
        micro_batch = self.micro_batches.pop(task.micro_batch)
        half = micro_batch.input_half(self._sum_over_consumers(task), check=self.whole is None)
        self.halves[task.micro_batch], self.whole = half, half.whole
        if self.in_flight_limit is not None:
            self.samples_in_flight[task.micro_batch] *= self.kept_share
        return micro_batch.gradients()

    def _weight_half(self, task: StageTask) -> None:
        half = self.halves.pop(task.micro_batch)
        half.run()
        if (saved := half.saved_tensors) is not None:
            self.releases.setdefault(saved.saved, not saved.mistaken)
        self._finish(task)

    def _releases(self, saved: int) -> bool:
        return self.releases.get(saved, False)

    def _compute(
        self,
        task: StageTask,
        received: dict[int, NamedTensors],
        rows: SampleRange,
        batch: MiniBatch,
        loss_fn: LossFunction | None,
    ) -> Computed:
        values = batch.input_rows(self.program.model_inputs, rows, self.device)
        for by_name in received.values():
            values |= {name: enter(value) for name, value in by_name.items()}
        if self.recomputation is not None and not torch.is_grad_enabled():
            # The stage may write into its inputs, and the backward needs them again.
            values = {name: value.clone() for name, value in values.items()}
        # Random numbers depend only on the task.
        if batch.key not in self.seeds:
            self.seeds[batch.key] = self._seeds(task.stage, batch)
        seed(self.device, self.seeds[batch.key][rows.start // batch.micro_batches[task.stage]])
        if self.precision == "fp32":
            return self._run(values, rows, batch, loss_fn)
        with autocast_context(self.precision, self.device):
            return self._run(values, rows, batch, loss_fn)

    def _seeds(self, stage: int, batch: MiniBatch) -> list[int]:
        # All at once, because deriving one between two tasks takes many times as long with cold caches.
        count = count_micro_batches(batch.size, batch.micro_batches[stage])
        return [derive_seed(*batch.key, stage, index, self.slot.replica) for index in range(count)]

    def _run(self, values: NamedTensors, rows: SampleRange, batch: MiniBatch, loss_fn: LossFunction | None) -> Computed:
        program, monitor, loss = self.program, self.monitor, None
        outputs, result = program(values)
        if monitor.injector.armed:
            outputs = {name: monitor.corrupt("forward", value) for name, value in outputs.items()}
        if program.sends:
            check_outputs(outputs, {edge: batch.specs[edge] for edge in program.sends}, len(rows), self.stage_name)
            # One copy for all consumers, and the graph keeps this one. A send would keep another for each of them.
            outputs = {name: value.contiguous() for name, value in outputs.items()}
        if batch.training and program.output_dtypes:
            check_result(result, program.output_dtypes, self.stage_name)
        if program.is_output and loss_fn is not None:
            loss = mean_loss(loss_fn, result, batch.target_rows(rows, self.device))
            if monitor.injector.armed:
                loss = monitor.corrupt("forward", loss)
        return Computed(outputs, result, loss)

    def _check_in_flight(self, task: StageTask, samples: int, in_flight_limit: float) -> None:
        self.samples_in_flight[task.micro_batch] = samples
        held = sum(self.samples_in_flight.values())
        assert held <= in_flight_limit + _ROUNDING, (
            f"stage '{self.stage_name}', replica {self.slot.replica}: with {task} {held:g} samples are in flight, "
            f"the plan allows {in_flight_limit:g}"
        )

    def _require_gradients(self, received: dict[int, NamedTensors], batch: MiniBatch) -> None:
        for edge, by_name in received.items():
            for spec in batch.specs[edge]:
                by_name[spec.name].requires_grad_(spec.requires_grad)

    def _sum_over_consumers(self, task: StageTask) -> NamedTensors:
        # In ascending order of edges, so that the sum does not depend on where the consumers run.
        total: NamedTensors = {}
        for by_name in self.received.take(task).values():
            for name, gradient in by_name.items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def _finish(self, task: StageTask) -> None:
        self.samples_in_flight.pop(task.micro_batch, None)
        if self.monitor.injector.armed:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.monitor.corrupt("backward", parameter.grad)

    def _record(
        self, task: StageTask, outputs: NamedTensors, loss: Tensor | None, share: float, *, check_finite: bool
    ) -> None:
        seen = [sum_of(value) for value in outputs.values() if not is_exact(value)] if check_finite and outputs else []
        if loss is not None:
            loss = loss.detach()
            self.losses.append((loss, share))
            seen.append(loss)
        if check_finite:
            self.sums[task.micro_batch] = seen
