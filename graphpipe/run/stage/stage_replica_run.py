"""One step of a stage replica: runs the tasks of its micro-batches, and keeps the state between them."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from graphpipe.devices.registry import kind_of
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import WeightHalf
from graphpipe.plans.sharding import SampleRange, count_micro_batches
from graphpipe.run.device.overwritten import naming_overwritten
from graphpipe.run.device.rng import derive_seed
from graphpipe.run.stage.edge_values import is_none
from graphpipe.run.stage.injected_gradients import check_no_injection
from graphpipe.run.stage.loss import LossFunction, is_exact, sum_of
from graphpipe.run.stage.micro_batch import MicroBatch
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.offload import OffloadedTensors
from graphpipe.run.stage.receive_buffers import LastUse, NamedTensors, ReceiveBuffers
from graphpipe.run.stage.stage_forward import StageForward
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.schedule import StageTask

_ROUNDING = 1e-6


@dataclass(slots=True)
class StageReplicaRun:
    """A stage replica in one step, or in one segment. It is made new for each."""

    replica: StageReplica
    """The replica that runs the tasks."""
    loss_fn: LossFunction | None
    """The loss function of the step; None computes no loss."""
    received: ReceiveBuffers = field(init=False)
    """The values that have arrived, or will."""
    outgoing: dict[int, NamedTensors] = field(default_factory=dict[int, NamedTensors])
    """Values that the last task has to send, by edge. They are sent right after the task."""
    outgoing_task: StageTask | None = None
    """The last task."""
    micro_batches: dict[int, MicroBatch] = field(default_factory=dict[int, MicroBatch])
    """Micro-batches between their forward and their backward, by number."""
    halves: dict[int, WeightHalf] = field(default_factory=dict[int, WeightHalf])
    """Weight halves that have not run yet, by micro-batch."""
    until_weights: dict[int, list[LastUse]] = field(default_factory=dict[int, list[LastUse]])
    """The received values that weight halves may read, by micro-batch. Kept only if streams wait for each other."""
    samples_in_flight: dict[int, float] = field(default_factory=dict[int, float])
    """Samples in flight, by micro-batch, from the forward to the end of the backward (of the weight half, if it is
    split). Kept only if the replica's `in_flight_limit` is set."""
    losses: list[tuple[Tensor, float]] = field(default_factory=list[tuple[Tensor, float]])
    """Losses (0-d) of the micro-batches, each with its share of the mini-batch."""
    loss_weights: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The weight that the loss function returned with a sum, by the first sample of a micro-batch."""
    sums: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])
    """The sum of each output (0-d), by micro-batch. It is not finite if any element is not."""
    seeds: dict[tuple[int, ...], list[int]] = field(default_factory=dict[tuple[int, ...], list[int]])
    """Seeds of random numbers, one per micro-batch, by the key of the mini-batch. Made at its first task."""
    results: list[tuple[SampleRange, Any]] = field(default_factory=list[tuple[SampleRange, Any]])
    """The model's outputs, with their samples (only in an evaluation that keeps them)."""

    def __post_init__(self) -> None:
        self.received = ReceiveBuffers(self.replica.device)

    def do(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        """Run a task on the given samples, and keep the values that it has to send."""
        self.outgoing = {}  # frees the last task's values, because messages keep what they still send
        weights, sync = self.replica.weights, self.replica.sync
        if sync.traits.exchanges_in_tasks:
            with sync.in_task():
                self._do(task, rows, batch)
        elif weights is None or not batch.training:
            self._do(task, rows, batch)
        else:
            with weights.reading(task):
                self._do(task, rows, batch)
        self.outgoing_task = task

    def last_uses(self, task: StageTask, *, training: bool) -> list[LastUse]:
        """Return the received values that nothing reads after a task."""
        number = task.micro_batch
        match task.kind:
            case "F":
                return [] if training else self.received.last_uses(task, "forward")
            case "B":
                return [*self.received.last_uses(task, "backward"), *self.micro_batches[number].last_uses()]
            case "I":
                self.until_weights[number] = self.micro_batches[number].last_uses()
                return self.received.last_uses(task, "backward")
            case "W":
                return self.until_weights.pop(number)
            case "U":
                return []

    def offload(self, micro_batch: int) -> None:
        """Start to copy what the stage offloads of a micro-batch to the memory of the node, or to a neighbour."""
        self.micro_batches[micro_batch].offload()

    def fetch(self, micro_batch: int) -> None:
        """Start to copy it back."""
        self.micro_batches[micro_batch].fetch()

    def _do(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        match task.kind:
            case "F":
                self.outgoing = self._forward(task, rows, batch)
            case "B":
                probed = batch.step == 1 and not task.micro_batch and len(rows) < batch.size
                with naming_overwritten(self.replica.stage_name):
                    self.outgoing = self._backward(task, probed=probed)
            case "I":
                with naming_overwritten(self.replica.stage_name):
                    self.outgoing = self._input_half(task)
            case "W":
                with naming_overwritten(self.replica.stage_name):
                    self._weight_half(task)
            case "U":
                assert self.replica.update is not None, "updates are tasks only in a segment"
                self.replica.update(task.micro_batch)

    def _forward(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> dict[int, NamedTensors]:
        replica, received, samples = self.replica, self.received.take(task), len(rows)
        if batch.training and replica.in_flight_limit is not None:
            self._check_in_flight(task, samples, replica.in_flight_limit)
        if batch.training and received:
            _require_gradients(received, batch)
        seed = self._seed(task, rows, batch)
        forward = StageForward(replica, received, rows, batch, self.loss_fn, seed, self.loss_weights)
        micro_batch = MicroBatch(
            received=received,
            share=samples / batch.size,
            scale=batch.loss_scale,
            compute=forward.compute,
            recomputation=replica.recomputation if batch.training else None,
            saved_tensors=ReleasableTensors(replica.may_release) if replica.splits and batch.training else None,
            offloaded=self._offloads(task, training=batch.training),
        )
        outputs, result, loss = micro_batch.forward()
        self._record(task, outputs, loss, micro_batch.share, check_finite=batch.check_finite)
        if batch.training:
            self.micro_batches[task.micro_batch] = micro_batch
        elif replica.program.is_output and batch.keeps_outputs:
            self.results.append((rows, result))
        if not (sends := replica.program.sends):
            return {}
        return {edge: {spec.name: outputs[spec.name].detach() for spec in specs} for edge, specs in sends.items()}

    def _seed(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> int:
        stage, size = task.stage, batch.micro_batches[task.stage]
        if batch.key not in self.seeds:
            # All at once, because deriving one between two tasks takes many times as long with cold caches.
            count, replica = count_micro_batches(batch.size, size), self.replica.slot.replica
            self.seeds[batch.key] = [derive_seed(*batch.key, stage, index, replica) for index in range(count)]
        return self.seeds[batch.key][rows.start // size]

    def _offloads(self, task: StageTask, *, training: bool) -> OffloadedTensors | None:
        offloading = self.replica.offloading
        if offloading is None:
            return None
        return offloading.begin(task.micro_batch, self.replica.module) if training else offloading.pause()

    def _backward(self, task: StageTask, *, probed: bool) -> dict[int, NamedTensors]:
        replica, micro_batch = self.replica, self.micro_batches.pop(task.micro_batch)
        # Where weights are gathered layer by layer, ranks would wait for each other in one more backward.
        if probed and replica.offloading is None and not replica.sync.traits.exchanges_in_tasks:
            names, held = replica.program.parameter_names, replica.module.named_parameters()
            trained = {names[name]: parameter for name, parameter in held if parameter.requires_grad}
            micro_batch.probe = partial(check_no_injection, trained=trained, stage=replica.stage_name)
        context = replica.sync.last_backward if task == replica.last else None
        micro_batch.backward(self._sum_over_consumers(task), context)
        self._finish(task)
        return micro_batch.gradients()

    def _input_half(self, task: StageTask) -> dict[int, NamedTensors]:
        replica, micro_batch = self.replica, self.micro_batches.pop(task.micro_batch)
        half = micro_batch.input_half(self._sum_over_consumers(task), check=replica.whole is None)
        self.halves[task.micro_batch], replica.whole = half, half.whole
        if replica.in_flight_limit is not None:
            self.samples_in_flight[task.micro_batch] *= replica.kept_share
        return micro_batch.gradients()

    def _weight_half(self, task: StageTask) -> None:
        half = self.halves.pop(task.micro_batch)
        half.run()
        if (saved := half.saved_tensors) is not None:
            self.replica.releases.setdefault(saved.saved, not saved.mistaken)
        self._finish(task)

    def _check_in_flight(self, task: StageTask, samples: int, in_flight_limit: float) -> None:
        self.samples_in_flight[task.micro_batch] = samples
        held = sum(self.samples_in_flight.values())
        assert held <= in_flight_limit + _ROUNDING, (
            f"stage '{self.replica.stage_name}', replica {self.replica.slot.replica}: with {task} {held:g} samples "
            f"are in flight, the plan allows {in_flight_limit:g}"
        )

    def _sum_over_consumers(self, task: StageTask) -> NamedTensors:
        # In ascending order of edges, so that the sum does not depend on where the consumers run.
        total: NamedTensors = {}
        for by_name in self.received.take(task).values():
            for name, gradient in by_name.items():
                total[name] = total[name] + gradient if name in total else gradient
        return {name: gradient for name, gradient in total.items() if not self._is_none(name, gradient)}

    def _is_none(self, name: str, gradient: Tensor) -> bool:
        # The host waits for an accelerator's answer, so it is asked only until a value has got a gradient.
        reached = self.replica.reached
        if name in reached:
            return False
        none = is_none(gradient)
        if not (none or kind_of(gradient.device).on_host):
            reached.add(name)
        return none

    def _finish(self, task: StageTask) -> None:
        self.samples_in_flight.pop(task.micro_batch, None)
        monitor = self.replica.monitor
        if monitor.injector.armed:
            for parameter in self.replica.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = monitor.corrupt("backward", parameter.grad)

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


def _require_gradients(received: dict[int, NamedTensors], batch: MiniBatch) -> None:
    for edge, by_name in received.items():
        for spec in batch.specs[edge]:
            by_name[spec.name].requires_grad_(spec.requires_grad)
