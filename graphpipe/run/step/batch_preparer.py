"""Prepares the input of a step: checks it, compares it with other ranks', and fits the replicas to its shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from graphpipe.errors import InvalidInput
from graphpipe.model.hidden.later_changes import LaterChanges
from graphpipe.model.inputs import describe, name_inputs
from graphpipe.plans import Plan
from graphpipe.run.comm.batch_comparison import BatchComparison
from graphpipe.run.faults.rank_status import ALL_PEERS
from graphpipe.run.stage.mini_batch import MiniBatch, SeenValues, check_alike, check_rows
from graphpipe.run.stage.shares.batch_share import BatchShare, GivenBatch
from graphpipe.run.stage.shares.check_share import check_share, listed
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.step.balance import balanced
from graphpipe.run.step.build_worker import match_modes
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.step.programs_by_shape import ProgramsByShape, ShapedPrograms, format_inputs
from graphpipe.run.step.refit_replicas import refit_replicas
from graphpipe.run.weights.check_sync import check_samples
from graphpipe.run.worker.smaller_batches import smaller_plan
from graphpipe.run.worker.user_weights import UserWeights
from graphpipe.run.worker.worker import StageWorker


@dataclass(slots=True, kw_only=True)
class BatchPreparer:
    """Makes mini-batches from the inputs of this rank; all ranks call its methods alike."""

    plan: Plan
    shapes: ProgramsByShape
    worker: StageWorker
    options: PipelineOptions
    user: UserWeights
    neighbours: tuple[int, ...]
    """The ranks to compare with (see `batch_comparison.neighbours`)."""
    needs: Callable[[int], Needs]
    """Returns what this rank reads of so many samples (see `find_needs`)."""
    engines: Sequence[str]
    """The synchronisation of each stage."""
    changes: LaterChanges | None = None
    """Finds what was changed in the model since the pipeline was built; None if it was built from stage programs."""
    weights: str = ""
    """A digest of the model's initial weights; empty if they are not compared."""
    seen: SeenValues = field(default_factory=SeenValues)
    """The values that this rank was given, which must be those of the other ranks."""
    compared: bool = False
    """Whether a mini-batch of a training has been compared."""
    fitted: ShapedPrograms | None = None
    """The shapes that the replicas are fitted to; None before the first mini-batch and after an error."""

    def check(
        self, given: GivenBatch, *, step: int, training: bool, loss_factor: float, like: MiniBatch | None = None
    ) -> MiniBatch:
        """Return the mini-batch.

        Args:
            given: inputs and targets of the whole mini-batch, or this rank's share of them.
            step: steps done.
            training: whether gradients are computed.
            loss_factor: what the loss is multiplied by.
            like: the first mini-batch of the segment, whose shapes this one must have.

        Raises:
            InvalidInput: inputs are missing, rows disagree, shapes differ, or a training is given more samples than the
                plan is for; or the model was changed after the pipeline was built.
        """
        if training and self.changes is not None:
            self.changes.check()
        planned = self.plan.graph.inputs
        if isinstance(given, BatchShare):
            planned_for = self._check_size(size := len(given.samples), training=training)
            needs, samples, with_targets = self.needs(size), given.samples, given.with_targets
            named, targets = check_share(given, needs, planned), given.targets
        else:
            inputs, targets = given
            named = name_inputs(self.plan.graph.input_layout, inputs)
            planned_for = self._check_size(size := check_rows(named, targets), training=training)
            needs, samples, with_targets = None, (), targets is not None
        batch = MiniBatch(
            inputs=named,
            targets=targets,
            size=size,
            micro_batches=tuple(stage.micro_batch for stage in planned_for.stages),
            key=(self.options.seed, step),
            training=training,
            specs=self.shapes.first.specs,
            loss_scale=loss_factor,
            check_finite=training and self.options.check_finite,
            needs=needs,
            samples=samples,
            with_targets=with_targets,
        )
        if training and (balance := self.options.balance) is not None:
            if needs is not None:
                remedy = "Put the samples into a balanced order before ranks take their shares: Task(loads=...)."
                raise InvalidInput("needs the whole mini-batch, and was given a share", where="balance", remedy=remedy)
            batch = balanced(batch, planned_for, balance)
        if like is not None:
            check_alike(batch, like)
        if training and self.worker.world.size > 1:
            self.seen.add(batch)
        return batch

    def _check_size(self, size: int, *, training: bool) -> Plan:
        # The plan for so many samples.
        if not size:
            raise InvalidInput("the mini-batch has no samples", where="step" if training else "evaluate")
        if not training or size == self.plan.batch_size:
            return self.plan
        smaller = smaller_plan(self.plan, size)
        check_samples(self.engines, smaller, self.worker.placement)
        return smaller

    def report_invalid(self, error: InvalidInput) -> None:
        """Report an invalid mini-batch to the other ranks; return if all of them found the same error.

        Raises:
            InvalidInput: this error, if another rank found a different error or none.
            PeerLost, PeerStalled: another rank is gone.
        """
        said = f"cannot use its mini-batch ({error.what})"
        try:
            BatchComparison.begin(self.worker.world, self.neighbours, said).settle()
        except InvalidInput:
            raise error from None

    def prepare(self, batch: MiniBatch, count: int = 1) -> MiniBatch:
        """Fit this rank's replicas to the mini-batch's shapes, and return it with the values that cross the edges.

        Args:
            batch: the mini-batch, or the first of a segment.
            count: mini-batches of the segment.

        Raises:
            InvalidInput: another rank was given another mini-batch, or the stages cannot be built for these shapes.
            PeerLost, PeerStalled: another rank is gone.
        """
        worker = self.worker
        worker.monitor.enter("agree", peer=ALL_PEERS)
        fitted = self.shapes.known(batch.inputs) if batch.needs is None else self.shapes.first
        comparison = None if worker.world.size == 1 else self._compare(batch, fitted, count)
        if fitted is None:
            fitted = self.shapes.fit(batch.inputs)
        if fitted is not self.fitted:
            self.fitted = None
            refit_replicas(worker, self.plan, self.shapes.first, fitted)
            self.fitted = fitted
        if batch.training:
            self.shapes.follow_modes()
            match_modes(worker, fitted.programs)
        self.user.take()
        worker.messages.comparison = comparison
        return batch if batch.specs is fitted.specs else replace(batch, specs=fitted.specs)

    def _compare(self, batch: MiniBatch, fitted: ShapedPrograms | None, count: int) -> BatchComparison:
        inputs = describe(batch.inputs) if fitted is None else fitted.inputs
        values = self._values(batch)
        samples = f"{batch.size} samples" if count == 1 else f"{count} mini-batches of {batch.size} samples"
        if batch.needs is not None:
            samples = f"its share of {samples} {listed(batch.samples)}"
        said = f"was given {samples}{f' ({values})' if values else ''} of {format_inputs(inputs)}"
        comparison = BatchComparison.begin(self.worker.world, self.neighbours, said)
        self.compared = self.compared or batch.training
        if fitted is None or not batch.training:
            comparison.settle()
        if not batch.training:
            self.worker.world.barrier()  # ranks that have not compared their batches exchange messages later
        return comparison

    def _values(self, batch: MiniBatch) -> str:
        *_, step = batch.key
        if not batch.training:
            return "" if batch.needs is None else f"all of them {SeenValues.of(batch).digits}"
        place = self.options.position
        parts = [place()] if place is not None else []
        parts.append(f"{'values' if batch.needs is None else 'samples'} so far {self.seen.digits}")
        if step == 0 and not self.compared and self.weights:
            parts.append(f"initial weights {self.weights}")
        return ", ".join(parts)
