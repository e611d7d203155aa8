"""How far a training had come at a checkpoint, and whether a run may go on from there."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.files.json_document import Count, from_body, read_document
from graphpipe.run.device.loss_scale import LossScale
from graphpipe.training.task.data_reader import Position

TRAINING = "training.json"
State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """What is neither the model's nor the optimizer's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: Count
    """Steps done."""
    seed: int
    batch_size: int
    position: Position
    loss_scale: LossScale | None = None
    """Where gradients are scaled."""

    @staticmethod
    def load(path: Path) -> "TrainingState":
        """Read the state that a checkpoint holds.

        Raises:
            CheckpointCorrupt: it cannot be read.
        """
        return read_state(TrainingState, "training", path)

    def check(self, *, seed: int, batch_size: int, where: str) -> None:
        """Check that a run may go on from here.

        Raises:
            InvalidInput: it has another seed or mini-batch size, which decide what comes next.
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
        """Check that something is left to do in a training of so many steps: steps, or after the last its results.

        Args:
            steps: of the whole training.
            results: they have been written.
            where: for errors.

        Raises:
            InvalidInput: nothing is.
        """
        if self.step > steps or (self.step == steps and results):
            raise InvalidInput(
                f"the training is complete: {self.step} of {steps} steps are done",
                where=where,
                remedy="Choose more train.steps or train.epochs to train on.",
            )


def read_state(kind: type[State], name: str, path: Path) -> State:
    """Return a document of a checkpoint.

    Raises:
        CheckpointCorrupt: it cannot be read.
    """
    try:
        return read_document(path, name, lambda body: from_body(kind, body, str(path)))
    except InvalidInput as error:
        raise CheckpointCorrupt(error.what, where=error.where) from None
