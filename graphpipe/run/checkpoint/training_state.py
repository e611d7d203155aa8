"""`training.json`: how far a training had come, and whether a run with these settings can resume from there."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import Count
from graphpipe.run.checkpoint.manifest import read_checkpoint_document
from graphpipe.run.device.precision import LossScale
from graphpipe.run.device.random_state import RandomState


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """How many mini-batches of which epoch have been trained."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    epoch: Count = 0
    """Number of the epoch, from 0."""
    batch: Count = 0
    """Mini-batches of this epoch that are done."""
    random: RandomState | None = None
    """The random generators at the start of the epoch: to resume, its mini-batches are drawn again up to this position.
    If it is None, the generators are not restored."""

    def __str__(self) -> str:
        """Return the position in words."""
        return f"epoch {self.epoch}, mini-batch {self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The state of a training apart from the model and the optimizer."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: Count
    """Number of steps done."""
    seed: int
    batch_size: int
    position: DataPosition
    loss_scale: LossScale | None = None
    """The factor of the loss; None if gradients are not scaled."""

    @staticmethod
    def load(path: Path) -> "TrainingState":
        """Read the training.json of a checkpoint.

        Raises:
            CheckpointCorrupt: it cannot be read.
        """
        return read_checkpoint_document(TrainingState, "training", path)

    def check(self, *, seed: int, batch_size: int, where: str) -> None:
        """Check that a run with this seed and mini-batch size can resume from here.

        Raises:
            InvalidInput: the seed or the mini-batch size differs; they decide the next mini-batches.
        """
        if self.batch_size != batch_size:
            raise InvalidInput(
                f"was trained with mini-batches of {self.batch_size}, this run has mini-batches of {batch_size}",
                where=where,
                remedy=f"Choose mini-batches of {self.batch_size}, or start from the exported weights.",
            )
        if self.seed != seed:
            raise InvalidInput(
                f"was trained with seed {self.seed}, this run has seed {seed}",
                where=where,
                remedy=f"Choose seed {self.seed}, or start from the exported weights.",
            )

    def check_unfinished(self, steps: int, *, results: bool, where: str) -> None:
        """Check that a training of this many steps is not complete: steps are left, or its results are not written.

        Args:
            steps: of the whole training.
            results: whether its results have been written.
            where: for errors.

        Raises:
            InvalidInput: the training is complete.
        """
        if self.step > steps or (self.step == steps and results):
            raise InvalidInput(
                f"the training is complete: {self.step} of {steps} steps are done",
                where=where,
                remedy="Choose more train.steps or train.epochs to train on.",
            )
