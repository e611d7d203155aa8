"""The user's own code between the steps of a training.

A task names callbacks, `Task(callbacks=[...])`, or `train.callbacks` names those of installed packages:

    [project.entry-points."graphpipe.callbacks"]
    mine = "my_package.my_callback:MINE"
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphpipe.plugins import Registry
from graphpipe.run.pipeline import Pipeline


@dataclass(slots=True, kw_only=True)
class TrainingView:
    """What a callback sees of a training on its rank."""

    pipeline: Pipeline
    """The pipeline. Those of its methods that all ranks must call can be used in a hook, on all ranks alike."""
    steps: int
    """Steps of the whole training."""
    folder: Path
    """The folder of the run."""
    why_stopped: str = field(default="", init=False)
    """What `stop` was given."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.pipeline.steps

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.pipeline.world.rank

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.pipeline.world.size

    def stop(self, why: str) -> None:
        """End the training at the next evaluation or checkpoint. It is enough that one rank calls this."""
        self.why_stopped = why or "a callback asked for it"


class Callback:
    """What is called between the steps of a training, on every rank. Override the hooks that you need.

    A rank continues when its hook returns. Random numbers that a hook draws do not change the training.
    """

    def start(self, training: TrainingView) -> None:
        """Do something before the first step, also of a run that is resumed."""

    def step(self, training: TrainingView, figures: Mapping[str, float]) -> None:
        """Do something after a step.

        Args:
            training: on this rank.
            figures: by the names that loggers get, such as `train/loss`.
        """

    def evaluation(self, training: TrainingView, figures: Mapping[str, float]) -> None:
        """Do something after an evaluation, with its figures: `loss`, and the task's metrics."""

    def checkpoint(self, training: TrainingView) -> None:
        """Do something after a checkpoint was saved, or began to be saved."""

    def end(self, training: TrainingView, figures: Mapping[str, float]) -> None:
        """Do something after the last step and the last evaluation, with the figures of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackKind:
    """A callback that `train.callbacks` names."""

    name: str
    make: Callable[[], Callback]
    """Called once on every rank, before the first step."""


CALLBACKS = Registry("callback", CallbackKind, "graphpipe.callbacks", ())


def register_callback(kind: CallbackKind) -> None:
    """Register a callback in this process, as an entry point of an installed package does in every process.

    Raises:
        InvalidInput: another callback has this name.
    """
    CALLBACKS.register(kind)
