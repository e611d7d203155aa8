"""Everything that is told of a training while it runs: progress, metrics.jsonl, events, loggers, torch's profiler."""

import json
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from os import getpid
from pathlib import Path
from typing import TextIO

import torch

from graphpipe.files.json_document import to_body
from graphpipe.run.device.memory_usage import held_bytes, peak_bytes
from graphpipe.run.step.pipeline_state import Held
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.metrics_log import write_log
from graphpipe.training.run_folder.train_result import Step, TrainResult
from graphpipe.training.telemetry.event import CheckpointEvent, EndEvent, MemoryEvent, StartEvent, StepEvent
from graphpipe.training.telemetry.event_log import EventLog, failure, open_events
from graphpipe.training.telemetry.loggers import open_loggers
from graphpipe.training.telemetry.metric_logger import MetricLogger
from graphpipe.training.telemetry.progress import TrainProgress
from graphpipe.training.telemetry.torch_profile import profiled
from graphpipe.versions import PACKAGE, versions

METRICS_LOG = "metrics.jsonl"


@dataclass(slots=True, kw_only=True)
class Observer:
    """Tells what one rank does. Only rank 0 has progress to show, a log and loggers."""

    held: Held
    batch_size: int
    events: EventLog
    progress: TrainProgress
    stepped: Callable[[], None]
    """Moves torch's profiler on."""
    log: TextIO | None
    loggers: tuple[MetricLogger, ...]
    number: int
    """Of the last step done."""

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.progress.steps

    def start(self) -> None:
        """Tell that training begins."""
        held, plan = self.held, self.held.plan
        self.events.write(
            StartEvent(
                host=socket.gethostname(),
                pid=getpid(),
                device=str(held.world.device),
                stages=tuple(leader.stage_name for leader in held.worker.leaders()),
                plan_fingerprint=plan.fingerprint,
                graphpipe=versions([PACKAGE])[PACKAGE],
                torch=torch.__version__,
                first_step=self.number + 1,
            )
        )
        self._memory()

    def step(self, step: Step) -> None:
        """Tell of a step."""
        self.number = step.step
        speed = self.batch_size / step.seconds
        self.progress.advance(step.loss, speed)
        self.events.write(StepEvent(**asdict(step), samples_per_second=speed))
        memory = self._memory()
        if self.log is not None:
            print(json.dumps(to_body(step)), file=self.log, flush=True)
        metrics = {"train/loss": step.loss, "train/step_seconds": step.seconds, "train/samples_per_second": speed}
        self._log(
            metrics | {"memory/rank0_held_bytes": memory.held_bytes, "memory/rank0_peak_bytes": memory.peak_bytes}
        )
        self.stepped()

    def checkpoint(self, seconds: float) -> None:
        """Tell that a checkpoint was taken, and how long training waited for it."""
        self.events.write(CheckpointEvent(step=self.number, seconds=seconds))

    def end(self, result: TrainResult) -> None:
        """Tell what training came to."""
        found = {"held_out/loss": result.loss_held_out, "held_out/accuracy": result.accuracy}
        self._log({name: value for name, value in found.items() if value is not None})
        self.events.write(EndEvent(step=self.number))

    def fail(self, error: BaseException) -> None:
        """Tell what ended training."""
        stages = [stage.name for stage in self.held.plan.stages]
        self.events.write(failure(error, self.number + 1, self.held.worker.recorder.doing, stages))

    def _memory(self) -> MemoryEvent:
        device = self.held.world.device
        event = MemoryEvent(step=self.number, held_bytes=held_bytes(device), peak_bytes=peak_bytes(device))
        self.events.write(event)
        return event

    def _log(self, metrics: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log(self.number, metrics)


@contextmanager
def observing(
    config: TrainConfig, held: Held, directory: Path, steps: int, history: Sequence[Step], done: int
) -> Generator[Observer]:
    """Open all that is told of a training on this rank; what ends the block with an error is told too.

    Args:
        config: of the training.
        held: by the rank.
        directory: of the run.
        steps: of the whole training.
        history: the steps of the run that are known.
        done: how many are done already.

    Raises:
        InvalidInput: a file cannot be written, or a logger's extra is missing.
    """
    rank = held.world.rank
    main = rank == 0
    with ExitStack() as stack:
        enter = stack.enter_context
        observer = Observer(
            held=held,
            batch_size=config.train.batch_size,
            events=enter(open_events(directory, rank)),
            log=enter(write_log(directory / METRICS_LOG, history)) if main else None,
            loggers=enter(open_loggers(config.train.loggers, directory, to_body(config), done + 1)) if main else (),
            stepped=enter(profiled(directory, rank, config.run.profile_steps, steps - done)),
            progress=enter(TrainProgress(steps, shown=main, done=done)),
            number=done,
        )
        observer.start()
        try:
            yield observer
        except BaseException as error:
            with suppress(OSError):  # The disk may be full: the error that is to be told matters more.
                observer.fail(error)
            raise
