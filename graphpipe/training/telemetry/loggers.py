"""The loggers a training's configuration names."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from graphpipe.errors import InvalidInput, nearest
from graphpipe.run.checkpoint.random_state import RandomState
from graphpipe.training.telemetry.metric_logger import MetricLogger


def check_loggers(names: Sequence[str]) -> None:
    """Check that these loggers exist, and that what they need is installed.

    Raises:
        InvalidInput: names the extra that is missing.
    """
    for name in names:
        if name not in _LOGGERS:
            raise InvalidInput(f"unknown logger '{name}'", where="train.loggers", remedy=nearest(name, [*_LOGGERS]))
        if find_spec(name) is None:  # the package, the extra and the logger are of one name
            raise InvalidInput(
                f"'{name}' needs the package {name}, which is not installed",
                where="train.loggers",
                remedy=f"Install the extra: pip install 'graphpipe-torch[{name}]'.",
            )


@contextmanager
def open_loggers(
    names: Sequence[str], directory: Path, settings: Mapping[str, object], first_step: int = 1
) -> Generator[tuple[MetricLogger, ...]]:
    """Open loggers in the folder of a run; they are closed at the end of the block, errors or not.

    Args:
        names: of the loggers.
        directory: of the run.
        settings: the run's configuration.
        first_step: that will be logged.

    Raises:
        InvalidInput: as `check_loggers`.
    """
    check_loggers(names)
    with ExitStack() as stack:
        opened: list[MetricLogger] = []
        random = RandomState.now()
        for name in names:
            opened.append(_LOGGERS[name](directory, settings, first_step))
            stack.callback(opened[-1].close)
        random.restore()  # Only rank 0 has loggers: what they draw would tear the ranks' data apart.
        yield tuple(opened)


# Each imports its package when it is made.
def _tensorboard(directory: Path, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    from graphpipe.training.telemetry.tensorboard_logger import TensorBoardLogger

    return TensorBoardLogger(directory, first_step)


def _wandb(directory: Path, settings: Mapping[str, object], first_step: int) -> MetricLogger:
    if not (online := os.environ.get("WANDB_MODE") == "online"):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # Its service would send its errors to its makers.
    from graphpipe.training.telemetry.wandb_logger import WandbLogger

    return WandbLogger(directory, settings, online=online)


_LOGGERS: dict[str, Callable[[Path, Mapping[str, object], int], MetricLogger]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
