"""Calls the callbacks of a training, and lets all ranks agree on a request to end it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.pipeline import Pipeline
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.callback import CALLBACKS, Callback, TrainingView
from graphpipe.training.task.task import Task
from graphpipe.user_frames import describe_error

Hook = Callable[[Callback, TrainingView], None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The callbacks of a training on one rank."""

    callbacks: Sequence[Callback]
    training: TrainingView

    @staticmethod
    def of(config: TrainConfig, task: Task, pipeline: Pipeline, folder: RunFolder, steps: int) -> "Callbacks":
        """Return those of the task and of the configuration.

        Raises:
            InvalidInput: a name is unknown.
        """
        named = [CALLBACKS.find(name, "train.callbacks").make() for name in config.train.callbacks]
        view = TrainingView(pipeline=pipeline, steps=steps, folder=folder.path)
        return Callbacks([*task.callbacks, *named], view)

    def call(self, hook: Hook) -> None:
        """Call a hook of each, in order.

        Raises:
            InvalidInput: one raised something else than an error of this package; it is named.
        """
        if not self.callbacks:
            return
        random = RandomState.now()
        for callback in self.callbacks:
            try:
                hook(callback, self.training)
            except GraphPipeError:
                raise
            except Exception as error:
                where = f"callback {type(callback).__name__}"
                raise InvalidInput(f"raised {describe_error(error)}", where=where) from error
        random.restore()

    def why_stop(self) -> str:
        """Return why the training ends now, the same on every rank; empty if it goes on. All ranks call this."""
        if not self.callbacks:
            return ""
        return next((why for why in self.training.pipeline.world.exchange(self.training.why_stopped) if why), "")
