"""The pipeline: trains a split model, one mini-batch per `step`, on one rank or on one rank per device."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from traceback import clear_frames
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from graphpipe.errors import InvalidInput, NonFiniteLoss, PeerLost
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.plans import Plan
from graphpipe.run.averaged import WeightModes, averaged
from graphpipe.run.comm.rank_placement import RankLayout, layout
from graphpipe.run.comm.world import World, join
from graphpipe.run.device.precision import LossScale
from graphpipe.run.faults.out_of_memory import reporting_out_of_memory
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.initial_weights.whole_model import share_whole_model
from graphpipe.run.pipeline_parts import build_parts
from graphpipe.run.pipeline_values import state_of, whole_gradients
from graphpipe.run.rounds.layer_plan import layer_plan
from graphpipe.run.rounds.train_rounds import TrainRounds
from graphpipe.run.segments.mini_batch_stream import MiniBatchStream, taken_from
from graphpipe.run.segments.train_segment import TrainSegment
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.shares.batch_share import GivenBatch, InputsOrShare, given_batch
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.step.evaluate_all import EachBatch, evaluate_all
from graphpipe.run.step.evaluation import Evaluated
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.step.train_step import TrainStep
from graphpipe.run.weights.weight_update import OptimizerFactory
from graphpipe.run.whole_backwards import backwards_of, warn_of_whole_backwards
from graphpipe.run.worker.recorder import CurrentWork
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.trace import Trace


class Pipeline:
    """A model that trains as a plan splits it. All ranks build it and call its methods alike (SPMD).

    Args:
        plan: says which stage runs where, or the `Rounds` of `place_gradients`, which say where gradients are computed.
            With one rank, that rank runs everything. Otherwise there is one rank per device in use, or more: see
            `RankPlacement.of`. Ranks without a stage wait along.
        model: the user's model, the same on every rank, a function that builds it without data, or its stage programs,
            by stage. It may be on the meta device. With several ranks, a rank frees what its stages do not use.
        loss_fn: takes the model's output and the targets of some samples, returns the mean loss over these samples
            (0-d). Unless the output stage takes the whole batch, the mini-batch's loss must be that mean over samples.
        optimizer: builds an optimizer of the trainable parameters that a rank hosts; not called if there are none.
            A `NamedOptimizer` gets their names too. None: gradients are computed and no weight changes.
        options: everything else; None takes the defaults.

    Raises:
        InvalidInput: the plan is for inference, the world does not fit it, the model does not, or the ranks differ.
        Infeasible: ranks offload more than is free. PeerLost, PeerStalled: a peer did not come.
    """

    def __init__(
        self,
        plan: Plan | Rounds,
        model: nn.Module | ModelBuilder | Sequence[StageProgram],
        loss_fn: LossFunction,
        optimizer: OptimizerFactory | None = None,
        *,
        options: PipelineOptions | None = None,
    ) -> None:
        rounds, plan = (None, plan) if isinstance(plan, Plan) else (plan, layer_plan(plan))
        plan.require_training()
        self.options = options or PipelineOptions()
        self.plan = plan = self.options.policy_of(plan)
        """The given plan, under the weight policy of the options."""
        self.steps = 0
        """Steps done; with the seed they determine a step's random numbers."""
        self.world: World = join(self.options.device, self.options.timeout_seconds, self.options.alone)
        """This rank among all ranks."""
        model = model if isinstance(model, Sequence) else without_data(model)
        self._model = model if isinstance(model, nn.Module) else None
        self._open = True
        with self.world.closing_on_error():
            self._parts = build_parts(self.world, plan, model, loss_fn, optimizer, self.options, rounds)
        self._worker = self._parts.worker
        self.modes = WeightModes(self._parts.batches.user, self._parts.training.update.optimizers)
        """Of optimizers that have other weights for evaluations. Evaluations, `sync_model` and `close` take these."""

    def step(self, inputs: InputsOrShare, targets: Any = None) -> float:
        """Train on one mini-batch, and return its mean loss, the same on every rank.

        Args:
            inputs: the whole mini-batch, the same on every rank; each rank takes the rows it needs. The samples' shapes
                may differ from step to step; the first time takes as long as capturing the model. Or this rank's share.
            targets: what `loss_fn` gets beside the output: a tensor, or tuples, lists and dicts of tensors.

        Raises:
            InvalidInput: the mini-batch has another size than the plan's, or a value has an unexpected shape.
            NonFiniteLoss: of a loss or gradient, on every rank, before any weight is changed; training may continue.
            OutOfMemory: on this rank. PeerLost, PeerStalled: another rank is gone.
        """
        training, given = self._parts.training, given_batch(inputs, targets)
        if not isinstance(training, TrainStep):
            return self._train(training, MiniBatchStream.checked([given], self._batch))[0]
        return self._step(training, given)

    def needs(self, samples: int | None = None) -> Needs:
        """Return which rows of which inputs, and of the targets, this rank reads of a mini-batch.

        Args:
            samples: of the mini-batch in an evaluation. None: those of the plan, for `step` and `segment`.
        """
        return self._parts.batches.needs(self.plan.batch_size if samples is None else samples)

    def segment(self, batches: Iterable[GivenBatch], *, count: int | None = None) -> list[float]:
        """Train on mini-batches without a flush in between, and return the mean loss of each.

        Which weights they see is the plan's weight policy. Under the policy `flush` each of them is a `step`.

        Args:
            batches: inputs and targets of each mini-batch, or its share, as for `step`, all of the same shapes.
            count: how many to take. They are then read when they are needed, and only those in flight are held, so that
                a segment may be longer than memory. None: all, which are checked before the segment begins.

        Raises:
            InvalidInput: as `step`, the shapes differ, or there are fewer than `count`. With `count`, this may be found
                in the middle of a segment, which then fails as for a loss that is not finite.
            NonFiniteLoss: of a loss or gradient, on every rank. Under `flush`, the mini-batches before it have changed
                the weights. Under other policies the state is that before the segment. Without
                `PipelineOptions.rollback` it is lost, and the pipeline is closed.
            OutOfMemory: on this rank. PeerLost, PeerStalled: another rank is gone.
        """
        training = self._parts.training
        if isinstance(training, TrainStep):
            taken = batches if count is None else taken_from(batches, count)
            return [self._step(training, given) for given in taken]
        if count is not None:
            return self._train(training, MiniBatchStream.lazy(batches, count, self._batch))
        given = [*batches]
        return self._train(training, MiniBatchStream.checked(given, self._batch)) if given else []

    def evaluate(self, inputs: InputsOrShare, targets: Any = None, *, gather: bool = True) -> tuple[float | None, Any]:
        """Return the mean loss and the outputs of all samples, in evaluation mode; no weight or mode changes.

        Args:
            inputs: any number of samples, the same on every rank; or this rank's share of inputs and targets.
            targets: None computes no loss.
            gather: give every rank the outputs; otherwise they are None.

        Raises:
            InvalidInput: rows disagree, outputs cannot be joined, or the model computes other things in evaluation.
            PeerLost, PeerStalled: another rank is gone.
        """
        found = self._evaluate(given_batch(inputs, targets), gather)
        return found.loss, found.outputs

    def evaluate_all(self, batches: Iterable[GivenBatch], *, each: EachBatch | None = None) -> float | None:
        """Evaluate mini-batches of any sizes, as `evaluate` does, and return the mean loss over all of their samples.

        Args:
            batches: inputs and targets of each mini-batch, the same on every rank, or shares (`needs(samples)`).
            each: called on every rank with outputs and targets of each mini-batch. None gathers no outputs.
        """
        return evaluate_all(batches, self._evaluate, each)

    @contextmanager
    def averaged(self) -> Generator[None]:
        """Put the averages of the weights (`PipelineOptions.average_decay`) in their place in a block, on all ranks."""
        with averaged(self._parts.batches.user, self.state.optimizers, self.options.average_decay):
            yield

    def sync_model(self) -> None:
        """Give every rank's whole model the current parameters and buffers of all stages; all ranks call this."""
        self.modes.set(training=False)
        self.gather_weights()
        with self._closing_on_error():
            share_whole_model(self._model, self._parts.programs, self._worker.placement, self.world)
        self._parts.batches.user.give()

    def gather_weights(self) -> None:
        """Put the current weights into the modules of this rank's stages, shards joined; all ranks call this."""
        with self._closing_on_error():
            self._parts.batches.user.gather()

    def trace(self) -> Trace:
        """Return what all ranks did in the last step or segment, if it was recorded; all ranks call this.

        Raises:
            InvalidInput: nothing was recorded.
        """
        if not (self.recording and self.steps):
            raise InvalidInput("no step was recorded", where="trace", remedy="Step with PipelineOptions(record=True).")
        with self._closing_on_error():
            return self._worker.recorder.gather(self.plan, self._worker.placement.rank_of)

    def layout(self) -> tuple[RankLayout, ...]:
        """Return what every rank hosts."""
        return layout(self._worker.placement)

    def backwards(self) -> dict[str, str]:
        """Return how the last step computed backwards that the plan splits, by stage: `split`, or `whole: ` and why."""
        return backwards_of(self._worker)

    @property
    def compilations(self) -> Mapping[str, int]:
        """How often this rank has compiled the forward of each region (`PipelineOptions.compile`), by its class."""
        return {} if (compiler := self._parts.training.compiler) is None else dict(compiler.compilations)

    @property
    def captures(self) -> int:
        """How often this rank has captured the model again, for inputs of other shapes than those of the plan."""
        return self._parts.batches.shapes.captures

    def gradients(self) -> dict[str, Tensor | None]:
        """Return the last gradients of parameters here, by name. All ranks must call this if the engine shards them."""
        return whole_gradients(self._parts)

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step will be multiplied by; 1 unless the precision is fp16."""
        return self._parts.training.loss_factor

    @property
    def gradient_norms(self) -> Sequence[float | None]:
        """The 2-norms of the last mini-batches' gradients, before clipping; None if not computed or not finite."""
        return self._parts.training.gradient_norms

    @property
    def recording(self) -> bool:
        """Whether steps are recorded, for `trace`; may be set between steps, on all ranks alike."""
        return self._worker.recorder.on

    @recording.setter
    def recording(self, on: bool) -> None:
        self._worker.recorder.on = on

    @property
    def doing(self) -> CurrentWork | None:
        """What this rank is computing or sending, or was when an error ended it; None between these."""
        return self._worker.recorder.doing

    @property
    def monitor(self) -> StatusReporter:
        """This rank's status, as other processes see it, and the faults that are injected."""
        return self._worker.monitor

    @property
    def state(self) -> PipelineState:
        """What a checkpoint saves and restores on this rank.

        To save, call `gather_weights` first. To restore, change the modules and optimizers, then call `resume`.
        """
        return state_of(self._parts, self._model, self.steps, self.options.seed)

    def resume(self, steps: int, loss_scale: LossScale | None) -> None:
        """Continue from the values that were put into `state`.

        Args:
            steps: done so far.
            loss_scale: None, or where the precision is not fp16, leaves it unchanged.
        """
        for sync in self._worker.syncs.values():
            sync.adopt()
        self._parts.batches.user.changed()
        self.modes.resume()
        self.steps = steps
        training = self._parts.training
        if isinstance(training, TrainStep) and training.loss_scale is not None and loss_scale is not None:
            training.loss_scale = loss_scale

    def close(self) -> None:
        """Leave the other ranks once all of them are ready to leave; all ranks call this."""
        if self._open:
            self.modes.set(training=False)
            self._parts.batches.user.give()
            self._open = False
            self.world.leave()

    def __enter__(self) -> Self:
        """Return the pipeline; it closes at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close; after an error at once, so that the other ranks need not wait."""
        if error is not None:
            return self._abandon(error)
        self.close()

    def _step(self, training: TrainStep, given: GivenBatch) -> float:
        batch = self._batch(given)
        with self._closing_on_error():
            loss = training.run(batch, self.steps + 1)
        self.steps += 1
        if self.steps == 1:
            warn_of_whole_backwards(self.backwards())
        return loss

    def _train(self, training: TrainSegment | TrainRounds, batches: MiniBatchStream) -> list[float]:
        with self._closing_on_error(always=not self.options.rollback):
            losses = training.run(batches, self.steps + 1)
        self.steps += len(losses)
        if self.steps == len(losses):
            warn_of_whole_backwards(self.backwards())
        return losses

    def _evaluate(self, given: GivenBatch, gather: bool) -> Evaluated:
        batch = self._batch(given, training=False)
        with self._closing_on_error():
            return self._parts.evaluation.run(batch, gather=gather)

    def _batch(
        self, given: GivenBatch, at: int = 0, like: MiniBatch | None = None, late: bool = False, training: bool = True
    ) -> MiniBatch:
        if not self._open:
            raise InvalidInput("the pipeline is closed", remedy="Build a new one; an error on any rank closes it.")
        self.modes.set(training=training)
        batches, step = self._parts.batches, self.steps + at
        try:
            return batches.check(given, step=step, training=training, loss_factor=self.loss_scale, like=like)
        except InvalidInput as error:
            if not late:  # Then the other ranks do not listen for errors. They find a lost peer.
                with self._closing_on_error():
                    batches.report_invalid(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        # Any reference to a connection keeps it open, and the peers waiting: those of messages and of torch's frames.
        if isinstance(error, PeerLost) and error.__cause__ is not None:
            clear_frames(error.__cause__.__traceback__)
        self._worker.forget()
        self._parts.sums.forget()
        self.world.abandon()
        self._open = False

    @contextmanager
    def _closing_on_error(self, *, always: bool = False) -> Generator[None]:
        # With several ranks an error on any rank ends the pipeline on all; a single rank can step again.
        try:
            with reporting_out_of_memory(self.monitor):
                yield
        except BaseException as error:
            if always or (self.world.size > 1 and not isinstance(error, NonFiniteLoss)):
                self._abandon(error)
            raise
