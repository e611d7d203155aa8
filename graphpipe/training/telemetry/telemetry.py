"""Everything that a rank reports while it trains: progress, metrics.jsonl, events, loggers and torch's profiler."""

import json
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from os import getpid
from typing import TextIO

import torch

from graphpipe.files.json_body import to_body
from graphpipe.run.comm.rank_placement import RankLayout
from graphpipe.run.pipeline import Pipeline
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics
from graphpipe.training.run_folder.metrics_log import StepMetrics, open_metrics_log
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import (
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    MemoryEvent,
    StartEvent,
    StepEvent,
)
from graphpipe.training.telemetry.event_log import EventLog, failure_event, open_event_log
from graphpipe.training.telemetry.loggers import MetricLogger, open_loggers
from graphpipe.training.telemetry.progress import TrainProgress
from graphpipe.training.telemetry.slow_rank import (
    SlowRankWatch,
    describe_slowness,
    predicted_compute_seconds,
)
from graphpipe.training.telemetry.torch_profile import torch_profile
from graphpipe.versions import PACKAGE, versions


@dataclass(slots=True, kw_only=True)
class Telemetry:
    """Reports what one rank does. Only rank 0 shows progress and has a metrics log and loggers."""

    pipeline: Pipeline
    batch_size: int
    events: EventLog
    progress: TrainProgress
    profiler_step: Callable[[], None]
    """Called after every step or segment, for torch's profiler."""
    log: TextIO | None
    loggers: tuple[MetricLogger, ...]
    done: int
    """Number of steps done."""
    watch: SlowRankWatch | None = None
    """None on a GPU, whose computing time is not known without waiting for it."""
    drained: int = 0
    """The step after which the pipeline last drained."""
    computed_seconds: float = 0.0
    """How long the rank had computed until then."""

    @property
    def steps(self) -> int:
        """Number of steps of the whole training."""
        return self.progress.steps

    @property
    def layout(self) -> RankLayout:
        """What this rank hosts."""
        return self.pipeline.layout()[self.pipeline.world.rank]

    def start(self) -> None:
        """Report that training begins."""
        pipeline, layout = self.pipeline, self.layout
        if pipeline.world.kind.on_host:
            self.watch = SlowRankWatch(predicted_seconds=predicted_compute_seconds(pipeline.plan, layout))
        self.drained, self.computed_seconds = self.done, pipeline.monitor.status.computing_seconds
        self.events.write(
            StartEvent(
                host=socket.gethostname(),
                pid=getpid(),
                device=str(pipeline.world.device),
                stages=tuple(dict.fromkeys(replica.stage for replica in layout.replicas)),
                plan_fingerprint=pipeline.plan.fingerprint,
                graphpipe=versions([PACKAGE])[PACKAGE],
                torch=torch.__version__,
                first_step=self.done + 1,
            )
        )
        self._memory()

    def step(self, step: StepMetrics, *, drained: bool = True) -> None:
        """Report a step.

        Args:
            step: that was done.
            drained: the pipeline has drained after it.
        """
        self.done = step.step
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
        if drained:
            self.profiler_step()
            self._watch_speed()

    def checkpoint(self, seconds: float) -> None:
        """Report a checkpoint, and how long training waited for it."""
        self.events.write(CheckpointEvent(step=self.done, seconds=seconds))

    def evaluation(self, found: EvaluationMetrics, seconds: float) -> None:
        """Report an evaluation of the held-out samples, and how long training waited for it."""
        self.events.write(EvaluationEvent(step=self.done, loss=found.loss, metrics=found.metrics, seconds=seconds))
        values = ({} if found.loss is None else {"loss": found.loss}) | found.metrics
        self._log({f"held_out/{name}": value for name, value in values.items()})
        if self.pipeline.world.rank == 0 and values:
            figures = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
            print(f"held-out after step {self.done}  {figures}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Report that all steps are done."""
        self.events.write(EndEvent(step=self.done))

    def fail(self, error: BaseException) -> None:
        """Report the error that ends training."""
        stages = [stage.name for stage in self.pipeline.plan.stages]
        self.events.write(failure_event(error, self.done + 1, self.pipeline.doing, stages))

    def _memory(self) -> MemoryEvent:
        device = self.pipeline.world.device
        kind = self.pipeline.world.kind
        event = MemoryEvent(step=self.done, held_bytes=kind.held_bytes(device), peak_bytes=kind.peak_bytes(device))
        self.events.write(event)
        return event

    def _watch_speed(self) -> None:
        before, self.computed_seconds = self.computed_seconds, self.pipeline.monitor.status.computing_seconds
        steps, self.drained = self.done - self.drained, self.done
        if self.watch is None:
            return
        event = self.watch.note(self.done, (self.computed_seconds - before) / steps, steps)
        if event is not None:
            self.events.write(event)
            print(describe_slowness(event, self.layout), file=sys.stderr, flush=True)
        if (pace := self.watch.pace(self.done)) is not None:
            self.events.write(pace)

    def _log(self, metrics: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log(self.done, metrics)


@contextmanager
def open_telemetry(
    config: TrainConfig,
    pipeline: Pipeline,
    folder: RunFolder,
    steps: int,
    history: Sequence[StepMetrics],
    done: int,
    drains: int,
) -> Generator[Telemetry]:
    """Open everything that this rank reports to. An error that ends the block is reported too.

    Args:
        config: of the training.
        pipeline: that trains.
        folder: of the run.
        steps: number of steps of the whole training.
        history: the steps that the metrics log begins with.
        done: number of steps done already.
        drains: how often the pipeline will drain until the last step.

    Raises:
        InvalidInput: a file cannot be written, or a logger's package is not installed.
    """
    rank = pipeline.world.rank
    main = rank == 0
    with ExitStack() as stack:
        enter = stack.enter_context
        telemetry = Telemetry(
            pipeline=pipeline,
            batch_size=config.train.batch_size,
            events=enter(open_event_log(folder, rank)),
            log=enter(open_metrics_log(folder.metrics_log, history)) if main else None,
            loggers=enter(open_loggers(config.train.loggers, folder, to_body(config), done + 1)) if main else (),
            profiler_step=enter(torch_profile(folder, rank, config.run.profile_steps, drains)),
            progress=enter(TrainProgress(steps, shown=main, done=done)),
            done=done,
        )
        telemetry.start()
        try:
            yield telemetry
        except BaseException as error:
            with suppress(OSError):  # If the disk is full, the error itself matters more than its event.
                telemetry.fail(error)
            raise
