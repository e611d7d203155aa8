"""Metrics for Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path

import wandb

from graphpipe.training.telemetry.metric_logger import MetricLogger


class WandbLogger(MetricLogger):
    """Writes a run into `wandb/` of a run's folder; offline, `wandb sync RUN/wandb/offline-run-*` uploads it later.

    Args:
        directory: of the run.
        settings: its configuration.
        online: send it to the server while it runs; otherwise nothing goes to the network.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object], *, online: bool) -> None:
        self._run = wandb.init(
            project="graphpipe",
            name=directory.name,
            dir=str(directory),
            mode="online" if online else "offline",
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write what is not written yet."""
        self._run.finish()
