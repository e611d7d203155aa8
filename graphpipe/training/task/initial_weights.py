"""The source of the weights of a training: of its configuration, or else of its task."""

from pathlib import Path

from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.sources.weights import Weights
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import Task

NEW = "init"
"""The setting for new weights."""


def initial_weights(config: TrainConfig, task: Task) -> WeightSource | None:
    """Return where the weights come from; None: from the task's module.

    Raises:
        InvalidInput: the setting is neither `init` nor the path of weights.
    """
    setting = config.train.initial_weights
    if not setting:
        return task.initial_weights
    return Weights.init() if setting == NEW else Weights.read(Path(config.folder) / setting)
