"""Metrics for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from graphpipe.training.telemetry.metric_logger import MetricLogger


class TensorBoardLogger(MetricLogger):
    """Writes scalars into `tensorboard/` of a run's folder: `tensorboard --logdir RUN`.

    Args:
        directory: of the run.
        first_step: that will be logged: a run that was broken off may have logged it before, and what came after.
    """

    def __init__(self, directory: Path, first_step: int = 1) -> None:
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()
