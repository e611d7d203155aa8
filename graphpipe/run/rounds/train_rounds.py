"""Trains in rounds, with gradients on other devices than their forwards.

with a flush       rounds of one mini-batch | scalar sum | optimizer where W is | new weights to F and I
without a flush    rounds of all mini-batches, updates and new weights in between | scalar sum
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.rounds.contents import Contents
from graphpipe.run.rounds.layer_copy import LayerCopy
from graphpipe.run.rounds.layer_run import LayerRun
from graphpipe.run.rounds.record_layer import record
from graphpipe.run.rounds.round_messages import RoundMessages
from graphpipe.run.rounds.round_run import RoundRun
from graphpipe.run.rounds.share_weights import WeightSharing
from graphpipe.run.segments.drained_state import DrainedState
from graphpipe.run.segments.mini_batch_stream import MiniBatchStream
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.step.batch_preparer import BatchPreparer
from graphpipe.run.step.step_summary import (
    ReplicaSummary,
    StepSummary,
    check_finite,
    losses_and_first_bads,
    norm_of,
    sum_up,
)
from graphpipe.run.weights.weight_update import ScheduledOptimizer, WeightUpdate
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds

_SPOILT = "The segment has changed the weights. Go on from a checkpoint, or keep them with rollback=True."
_RESTORED = "The weights are those before the segment. Look at this mini-batch, or lower the learning rate."
_UNCHANGED = "No weight was changed. Look at this mini-batch, or lower the learning rate."


@dataclass(slots=True, kw_only=True)
class TrainRounds:
    """Trains on one segment at a time; all ranks call `run` alike."""

    rounds: Rounds
    plan: Plan
    """Has each layer as a stage."""
    output_stage: int
    worker: StageWorker
    batches: BatchPreparer
    sums: ScalarSum
    loss_fn: LossFunction
    layers: Mapping[tuple[int, int], LayerCopy]
    """The layers of this rank, by number and device."""
    sharing: WeightSharing
    update: WeightUpdate
    """The optimizers of the layers whose W is here: all in one with a flush, one for each layer without."""
    by_layer: Mapping[int, Sequence[ScheduledOptimizer]]
    """The optimizers of each layer, one for each class, without a flush."""
    rolls_back: bool
    """Whether a copy of the state is kept before each segment without a flush."""
    with_norms: bool
    """Whether the norms of gradients are computed."""
    gradient_norms: Sequence[float | None] = ()
    """The 2-norm of the gradients of each mini-batch of the last segment; None if it was not computed."""
    norms: dict[int, list[Tensor | float]] | None = None
    """The same of each layer, while a segment runs."""
    sent_bytes: Counter[tuple[int, int, LayerTask]] = field(default_factory=Counter[tuple[int, int, LayerTask]])
    """Bytes of the messages of the last mini-batch or segment, by sender, receiver and task that made them."""
    loss_scale: None = None
    """None, because losses are not scaled."""
    compiler: None = None
    """None, because layers are not compiled."""

    @property
    def loss_factor(self) -> float:
        """What losses are multiplied by."""
        return 1.0

    @property
    def parameter_names(self) -> dict[int, str]:
        """Names in the user's model of the parameters that this rank updates, by `id(parameter)`."""
        return {id(parameter): name for group in self.update.groups for name, parameter in group.named}

    def gradients(self) -> dict[str, Tensor | None]:
        """Return the gradients of the parameters that this rank updates, by their names in the model."""
        return {name: parameter.grad for group in self.update.groups for name, parameter in group.named}

    def run(self, batches: MiniBatchStream, step: int) -> list[float]:
        """Train on mini-batches, and return the mean loss of each, the same on every rank.

        Args:
            batches: at least one.
            step: number of the first, from 1.

        Raises:
            InvalidInput: another rank was given other mini-batches, or a layer's gradients cannot be computed apart.
            NonFiniteLoss: of a loss or gradient, on every rank.
            PeerLost, PeerStalled: another rank is gone.
        """
        worker = self.worker
        worker.monitor.begin_step(step)
        batches.fit(self._prepared(batches[0], len(batches)).specs)
        worker.recorder.mini_batches = len(batches)
        worker.recorder.begin()
        with preserve_rng_state(worker.world.device):
            self.sharing.begin()
            for layer in self.layers.values():
                if self._trains(layer):
                    record(layer, batches[0], self.loss_fn)
            summaries = self._flushing(batches, step) if self.rounds.weights == "flush" else self._late(batches, step)
        self.sharing.end()
        self.batches.user.give()
        worker.recorder.end(worker.placement.devices(worker.world.rank))
        worker.monitor.end_steps(step, len(summaries))
        self.gradient_norms = [each.gradient_norm if self.with_norms else None for each in summaries]
        return [summary.loss for summary in summaries]

    def _prepared(self, batch: MiniBatch, count: int) -> MiniBatch:
        if batch.size != self.plan.batch_size:
            what = f"has {batch.size} samples, and gradients are placed for {self.plan.batch_size}"
            raise InvalidInput(what, where="mini-batch", remedy="Give whole mini-batches, as drop_last=True does.")
        prepared = self.batches.prepare(batch, count=count)
        if prepared.specs is not self.batches.shapes.first.specs:
            what = "has samples of other shapes than the plan's, for which gradients were not placed"
            raise InvalidInput(what, where="mini-batch", remedy="Pad the samples to the shapes of the example.")
        return prepared

    def _trains(self, layer: LayerCopy) -> bool:
        return any(LayerTask(kind, layer.number) in self.rounds.device_of for kind in ("I", "W"))

    def _flushing(self, batches: MiniBatchStream, step: int) -> list[StepSummary]:
        summaries: list[StepSummary] = []
        for number in range(len(batches)):
            batch = batches[number]
            batches.forget_before(number)
            one = MiniBatchStream(1, lambda _, __, batch=batch: batch)
            self.update.clear()
            run = self._compute(one, late=False)
            self.norms = {at: [self._norm(layer)] for at, layer in self._updated()}
            (summary,) = self._summed(run, 1)
            check_finite(summary, self.plan, step + number, _UNCHANGED)
            self.worker.monitor.enter("optimizer")
            self.update.step(summary.gradient_norm)
            self._send_weights(run)
            summaries.append(summary)
        batches.finish()
        return summaries

    def _late(self, batches: MiniBatchStream, step: int) -> list[StepSummary]:
        held = [layer.replica for layer in self.layers.values()]
        before = DrainedState.of(held, self.update.optimizers) if self.rolls_back else None
        self.update.clear()
        self.norms, count = {at: [] for at, _ in self._updated()}, len(batches)
        try:
            run = self._compute(batches, late=True)
            self.worker.monitor.enter("summary")
            run.finish(count)
            self._end()
            summaries = self._summed(run, count)
            batches.finish()
            for number, summary in enumerate(summaries):
                check_finite(summary, self.plan, step + number, _SPOILT if before is None else _RESTORED)
        except BaseException:
            self._end()
            if before is not None:
                before.restore()
            raise
        return summaries

    def _compute(self, batches: MiniBatchStream, *, late: bool) -> RoundRun:
        worker = self.worker
        self.sent_bytes.clear()
        for layer in self.layers.values():
            layer.begin()
        self.sums.expect(len(batches))
        contents = Contents(
            rounds=self.rounds,
            plan=self.plan,
            layers=self.layers,
            specs=batches[0].specs,
            samples=self.rounds.work.micro_batch,
        )
        messages = RoundMessages(
            rounds=self.rounds,
            placement=worker.placement,
            world=worker.world,
            contents=contents,
            sent_bytes=self.sent_bytes,
        )
        run = RoundRun(
            rounds=self.rounds,
            worker=worker,
            messages=messages,
            layers={
                key: LayerRun(layer=layer, loss_fn=self.loss_fn, done=StageReplicaRun(layer.replica, self.loss_fn))
                for key, layer in self.layers.items()
            },
            batches=batches,
            update=self._update if late else None,
        )
        worker.messages.finish_comparison()
        run.run()
        return run

    def _update(self, layer: LayerCopy, oldest: int) -> None:
        assert self.norms is not None
        self.norms[layer.number].append(self._norm(layer))
        layer.release(oldest)
        for scheduled in self.by_layer.get(layer.number, ()):
            scheduled.step()
        layer.updated()

    def _send_weights(self, run: RoundRun) -> None:
        # After a flush: the weights of one update, from where they were updated.
        last = self.rounds.work.micro_batches - 1
        updates = [task for device in self.rounds.devices for task in self.rounds.orders[device] if task.kind == "W"]
        for task in updates:
            run.messages.expect(task, last)
        here = dict(self._updated())
        for layer in (here[task.layer] for task in updates if task.layer in here):
            layer.updated()
            run.send_weights(layer, last)
        run.finish(1)
        self._end()

    def _end(self) -> None:
        for layer in self.layers.values():
            layer.end()

    def _updated(self) -> list[tuple[int, LayerCopy]]:
        return [(at, layer) for (at, _), layer in self.layers.items() if "W" in layer.kinds]

    def _norm(self, layer: LayerCopy) -> Tensor | float:
        gradients = [parameter.grad for parameter in layer.trained if parameter.grad is not None]
        return norm_of(gradients) if gradients and self.with_norms else 0.0

    def _summed(self, run: RoundRun, count: int) -> list[StepSummary]:
        # Of every number one rank has more than zero: the losses are those of the forwards, the norms those of W.
        assert self.norms is not None
        own: list[list[ReplicaSummary]] = [[] for _ in range(count)]
        for at in sorted({at for at, _ in self.layers}):
            slot = ReplicaSlot(stage=at, replica=0, device=self.plan.stages[at].devices[0])
            forwards = run.layers.get((at, slot.device))
            found = losses_and_first_bads(forwards.done, count) if forwards is not None else [(0.0, 0.0)] * count
            norms = [float(norm) for norm in self.norms.get(at, [0.0] * count)]
            for mini_batch, (loss, bad) in enumerate(found):
                own[mini_batch].append(ReplicaSummary(slot, loss, bad, norms[mini_batch] ** 2))
        return sum_up(self.sums, self.plan, own, self.output_stage)
