"""What a step is given, made ready: checked, compared with what other ranks were given, the replicas fitted to it."""

from dataclasses import dataclass, replace
from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs import Inputs, describe, name_inputs
from graphpipe.plans import Plan
from graphpipe.run.comm.batch_comparison import Agreement
from graphpipe.run.faults.rank_status import EVERYBODY
from graphpipe.run.stage.mini_batch import Batch, check_rows, fingerprint
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.build_worker import match_modes
from graphpipe.run.step.programs_by_shape import Fitted, Shapes, show
from graphpipe.run.step.refit_replicas import fit
from graphpipe.run.step.worker import Worker


@dataclass(slots=True, kw_only=True)
class Intake:
    """Makes mini-batches of what this rank is given; all ranks call its methods alike."""

    plan: Plan
    shapes: Shapes
    worker: Worker[StageReplica]
    neighbours: tuple[int, ...]
    """The ranks to compare with (see `agreement.neighbours`)."""
    fitted: Fitted | None = None
    """What the replicas are fitted to; None before the first mini-batch, and after an error."""

    def check(
        self,
        inputs: Inputs,
        targets: Any,
        *,
        key: tuple[int, ...],
        training: bool,
        loss_scale: float,
        check_finite: bool,
    ) -> Batch:
        """Return the mini-batch.

        Raises:
            InvalidInput: inputs are missing, rows disagree, or a training is given another number of samples.
        """
        named = name_inputs(tuple(given.name for given in self.plan.graph.inputs), inputs)
        size = check_rows(named, targets)
        if training and size != self.plan.batch_size:
            raise InvalidInput(
                f"the mini-batch has {size} samples, the plan is for {self.plan.batch_size}",
                where="step",
                remedy="Drop the last, smaller batch of an epoch, or plan for this batch size.",
            )
        return Batch(
            inputs=named,
            targets=targets,
            size=size,
            micro_batches=tuple(stage.micro_batch for stage in self.plan.stages),
            key=key,
            training=training,
            specs=self.shapes.first.specs,
            loss_scale=loss_scale,
            check_finite=check_finite,
        )

    def tell(self, error: InvalidInput) -> None:
        """Tell ranks that may have found nothing wrong with theirs; returns if they all found the same wrong.

        Raises:
            InvalidInput: this error; some rank was given something else.
            PeerLost, PeerStalled: another rank is gone.
        """
        said = f"cannot use its mini-batch ({error.what})"
        try:
            Agreement.begin(self.worker.world, self.neighbours, said).settle()
        except InvalidInput:
            raise error from None

    def ready(self, batch: Batch) -> Batch:
        """Return the mini-batch with what will cross the edges, this rank's replicas being ready for its shapes.

        Raises:
            InvalidInput: another rank was given something else, or the stages cannot be made for these shapes.
            PeerLost, PeerStalled: another rank is gone.
        """
        worker = self.worker
        worker.watch.at("agree", peer=EVERYBODY)
        fitted = self.shapes.known(batch.inputs)
        agreement = None if worker.world.size == 1 else self._agree(batch, fitted)
        if fitted is None:
            fitted = self.shapes.fit(batch.inputs)
        if fitted is not self.fitted:
            self.fitted = None
            fit(worker, self.plan, self.shapes.first, fitted)
            self.fitted = fitted
        if batch.training:
            match_modes(worker, fitted.programs)
        worker.channels.agreement = agreement
        return batch if batch.specs is fitted.specs else replace(batch, specs=fitted.specs)

    def _agree(self, batch: Batch, fitted: Fitted | None) -> Agreement:
        inputs = describe(batch.inputs) if fitted is None else fitted.inputs
        *_, step = batch.key
        # Ranks that draw their data apart do so from the first step on; to look at every step would cost time.
        values = f" (values {fingerprint(batch)})" if batch.training and step == 0 else ""
        said = f"was given {batch.size} samples{values} of {show(inputs)}"
        agreement = Agreement.begin(self.worker.world, self.neighbours, said)
        if fitted is None or not batch.training:
            agreement.settle()
        if not batch.training:
            self.worker.world.barrier()  # messages will go between ranks that have not compared theirs with each other
        return agreement
