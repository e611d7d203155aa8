"""The loggers that `train.loggers` names.

To add one, write a subclass of `MetricLogger` and a `LoggerKind` in `LOGGERS`. Another package declares one as an entry
point, which the ranks find too:

    [project.entry-points."graphpipe.loggers"]
    mine = "my_package.my_logger:MINE"
"""

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from graphpipe.errors import InvalidInput
from graphpipe.files.regular_file import append_text
from graphpipe.plugins import Registry
from graphpipe.run.device.random_state import RandomState
from graphpipe.training.config.sources import leaves
from graphpipe.training.run_folder.run_folder import RunFolder

_PARAM, _BATCH = 500, 100
"""Characters of a parameter, and parameters of a call, that every version of MLflow takes."""


class MetricLogger(ABC):
    """Writes metrics by name and step. Only rank 0 has loggers."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step.

        Args:
            step: from 1, never less than in an earlier call.
            metrics: by name, such as `train/loss`.
        """

    @abstractmethod
    def close(self) -> None:
        """Write everything that is buffered. This is the last call."""


class TensorBoardLogger(MetricLogger):
    """Writes scalars into `tensorboard/` of a run's folder: `tensorboard --logdir RUN`.

    Args:
        folder: of the run.
        first_step: the first step that will be logged. Later steps in the files, from before the run was interrupted,
            are dropped.
    """

    def __init__(self, folder: RunFolder, first_step: int = 1) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # an extra, and slow to import

        self._writer = SummaryWriter(str(folder.tensorboard), purge_step=first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything that is buffered."""
        self._writer.close()


class WandbLogger(MetricLogger):
    """Writes into `wandb/` of a run's folder. `wandb sync RUN/wandb/offline-run-*` uploads an offline run later.

    Args:
        folder: of the run.
        settings: its configuration.
        online: send the metrics to the server during the run. If False, nothing is sent.
    """

    def __init__(self, folder: RunFolder, settings: Mapping[str, object], *, online: bool) -> None:
        import wandb  # an extra, and slow to import

        self._run = wandb.init(
            project="graphpipe",
            name=folder.path.name,
            dir=str(folder),
            mode="online" if online else "offline",
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write everything that is buffered."""
        self._run.finish()


class MlflowLogger(MetricLogger):
    """Writes into `mlflow.db` of a run's folder, or to the server that `MLFLOW_TRACKING_URI` names.

    `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows it. A run that goes on is another run in MLflow.

    Args:
        folder: of the run.
        settings: its configuration.
    """

    def __init__(self, folder: RunFolder, settings: Mapping[str, object]) -> None:
        mlflow, entities = (import_module(name) for name in ("mlflow", "mlflow.entities"))  # an extra, slow to import
        self._metric = entities.Metric
        local = f"sqlite:///{(folder.path / 'mlflow.db').absolute()}"
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or local)
        known = self._client.get_experiment_by_name("graphpipe")
        experiment = self._client.create_experiment("graphpipe") if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=folder.path.name).info.run_id
        params = [entities.Param(".".join(key), str(value)[:_PARAM]) for key, value in leaves(settings)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._run, params=params[start : start + _BATCH])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        now = int(time.time() * 1000)
        given = [self._metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=given)

    def close(self) -> None:
        """Say that the run has ended."""
        self._client.set_terminated(self._run)


class JsonLinesLogger(MetricLogger):
    """Writes all metrics of a step as a line of `logged.jsonl` in a run's folder.

    Args:
        folder: of the run. A run that goes on appends its lines, so that steps which it repeats have several.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._file = append_text(folder.path / "logged.jsonl")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        print(json.dumps({"step": step, **metrics}), file=self._file, flush=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerKind:
    """A kind of logger, which `train.loggers` names."""

    name: str
    open: Callable[[RunFolder, Mapping[str, object], int], MetricLogger]
    """Takes the run's folder, its configuration and the first step that will be logged."""
    package: str = ""
    """The package that it needs. GraphPipe's own loggers have an extra of this name."""


def check_loggers(names: Sequence[str]) -> None:
    """Check that these loggers exist, and that their packages are installed.

    Raises:
        InvalidInput: names the extra that is missing.
    """
    for name in names:
        package = LOGGERS.find(name, "train.loggers").package
        if package and find_spec(package) is None:
            own = package in _EXTRAS
            raise InvalidInput(
                f"'{name}' needs the package {package}, which is not installed",
                where="train.loggers",
                remedy=f"Install the extra: pip install 'graphpipe-torch[{package}]'." if own else "Install it.",
            )


@contextmanager
def open_loggers(
    names: Sequence[str], folder: RunFolder, settings: Mapping[str, object], first_step: int = 1
) -> Generator[tuple[MetricLogger, ...]]:
    """Open loggers in the folder of a run, and close them at the end of the block, also after an error.

    Args:
        names: of the loggers.
        folder: of the run.
        settings: the run's configuration.
        first_step: the first step that will be logged.

    Raises:
        InvalidInput: as `check_loggers`.
    """
    check_loggers(names)
    with ExitStack() as stack:
        opened: list[MetricLogger] = []
        random = RandomState.now()
        for name in names:
            opened.append(LOGGERS.find(name, "train.loggers").open(folder, settings, first_step))
            stack.callback(opened[-1].close)
        random.restore()  # Only rank 0 has loggers. If they drew random numbers, the ranks would draw different data.
        yield tuple(opened)


def _tensorboard(folder: RunFolder, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    return TensorBoardLogger(folder, first_step)


def _wandb(folder: RunFolder, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    if not (online := os.environ.get("WANDB_MODE") == "online"):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb would send its own errors to its makers.
    return WandbLogger(folder, settings, online=online)


def _json_lines(folder: RunFolder, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    return JsonLinesLogger(folder)


def _mlflow(folder: RunFolder, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    return MlflowLogger(folder, settings)


_EXTRAS = ("mlflow", "tensorboard", "wandb")
LOGGERS = Registry(
    "logger",
    LoggerKind,
    "graphpipe.loggers",
    (
        LoggerKind(name="tensorboard", open=_tensorboard, package="tensorboard"),
        LoggerKind(name="wandb", open=_wandb, package="wandb"),
        LoggerKind(name="mlflow", open=_mlflow, package="mlflow"),
        LoggerKind(name="jsonl", open=_json_lines),
    ),
)


def register_logger(kind: LoggerKind) -> None:
    """Register a logger in this process, as an entry point of an installed package does in every process.

    Raises:
        InvalidInput: another logger has this name.
    """
    LOGGERS.register(kind)
