"""Everything that a rank reports while it trains: progress, metrics.jsonl, events, loggers and torch's profiler."""

import json
import math
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import getpid
from typing import TextIO

import torch

from graphpipe.files.json_body import to_body
from graphpipe.run.comm.rank_placement import RankLayout
from graphpipe.run.pipeline import Pipeline
from graphpipe.trace import COMPUTING, Trace
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
from graphpipe.training.telemetry.utilisation import peak_flops, step_flops
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
    wanted: bool = False
    """Whether loggers or callbacks get figures."""
    step_flops: float = 0.0
    """Operations of a mini-batch, by the plan."""
    peak_flops: float | None = None
    """Operations per second that the devices can do; None if that is not known."""

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

    def step(self, step: StepMetrics, *, drained: bool = True) -> dict[str, float]:
        """Report a step, and return its figures, as loggers get them.

        Args:
            step: that was done.
            drained: the pipeline has drained after it.
        """
        self.done = step.step
        speed = self.batch_size / step.seconds
        self.progress.advance(step.loss, speed)
        self.events.write(StepEvent(step=step.step, loss=step.loss, seconds=step.seconds, samples_per_second=speed))
        memory = self._memory()
        if self.log is not None:
            print(json.dumps(to_body(step)), file=self.log, flush=True)
        figures = self._figures(step, memory) if self.wanted else {}
        self._log(figures)
        if drained:
            self.profiler_step()
            self._watch_speed()
        return figures

    def _figures(self, step: StepMetrics, memory: MemoryEvent) -> dict[str, float]:
        peak = self.peak_flops
        rank = self.pipeline.world.rank
        figures = {
            "train/loss": step.loss,
            "train/step_seconds": step.seconds,
            "train/samples_per_second": self.batch_size / step.seconds,
            "train/learning_rate": step.learning_rate,
            "train/gradient_norm": step.gradient_norm,
            "train/mfu": self.step_flops / step.seconds / peak if peak and self.step_flops else None,
            f"memory/rank{rank}_held_bytes": memory.held_bytes,
            f"memory/rank{rank}_peak_bytes": memory.peak_bytes,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def traced(self, trace: Trace) -> None:
        """Report how long the devices of each stage computed in a step that was recorded."""
        stages = self.pipeline.plan.stages
        busy = dict.fromkeys(range(len(stages)), 0.0)
        for span in trace.spans:
            if span.kind in COMPUTING:
                busy[span.stage] += span.end_seconds - span.start_seconds
        self._log({f"stage/{stages[at].name}_seconds": seconds / stages[at].degree for at, seconds in busy.items()})

    def ended_early(self, why: str) -> None:
        """Report that the training ends before its last step."""
        if self.pipeline.world.rank == 0:
            print(f"ended after step {self.done} of {self.steps}: {why}", file=sys.stderr, flush=True)

    def checkpoint(self, seconds: float) -> None:
        """Report a checkpoint, and how long training waited for it."""
        self.events.write(CheckpointEvent(step=self.done, seconds=seconds))

    def evaluation(self, found: EvaluationMetrics, seconds: float) -> None:
        """Report an evaluation of the held-out samples, and how long training waited for it."""
        values = ({} if found.loss is None else {"loss": found.loss}) | found.metrics
        finite = {name: value for name, value in values.items() if math.isfinite(value)}  # JSON has no others
        metrics = {name: finite[name] for name in found.metrics if name in finite}
        self.events.write(EvaluationEvent(step=self.done, loss=finite.get("loss"), metrics=metrics, seconds=seconds))
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
    *,
    callbacks: bool = False,
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
        callbacks: there are callbacks, which get figures on every rank.

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
            wanted=callbacks or bool(main and config.train.loggers),
            step_flops=step_flops(pipeline.plan),
            peak_flops=peak_flops(pipeline.plan, config.train.precision),
        )
        telemetry.start()
        try:
            yield telemetry
        except BaseException as error:
            with suppress(OSError):  # If the disk is full, the error itself matters more than its event.
                telemetry.fail(error)
            raise
