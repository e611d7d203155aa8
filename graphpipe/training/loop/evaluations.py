"""The evaluations of a training: in between, at its end, and those before it was resumed."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field

from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.pipeline import Pipeline
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.survivor import Reader
from graphpipe.training.loop.callbacks import Callbacks
from graphpipe.training.loop.evaluate_task import HeldOut, evaluate_task
from graphpipe.training.loop.evaluation_watch import EvaluationWatch, figures_of, forget_best_after
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics, read_evaluations, write_evaluations
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import Task
from graphpipe.training.telemetry.telemetry import Telemetry


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Evaluates the held-out samples, reports what is found, and keeps it in the run's folder."""

    config: TrainConfig
    task: Task
    pipeline: Pipeline
    reader: Reader
    telemetry: Telemetry
    folder: RunFolder
    watch: EvaluationWatch
    callbacks: Callbacks
    last: tuple[int, HeldOut] | None = field(default=None, init=False)
    """The steps done at the last evaluation, and what it found."""

    @staticmethod
    def of(
        config: TrainConfig,
        task: Task,
        pipeline: Pipeline,
        reader: Reader,
        telemetry: Telemetry,
        folder: RunFolder,
        callbacks: Callbacks,
    ) -> "Evaluations":
        """Return the evaluations of a training that begins, or that goes on from its steps done. All ranks call this.

        Raises:
            InvalidInput: earlier evaluations cannot be read.
        """
        world, done = pipeline.world, pipeline.steps
        collective_call(world, lambda: forget_best_after(folder.best, done) if world.rank == 0 else None)
        before = [each for each in read_evaluations(folder.evaluations) if each.step <= done]
        return Evaluations(
            config=config,
            task=task,
            pipeline=pipeline,
            reader=reader,
            telemetry=telemetry,
            folder=folder,
            watch=EvaluationWatch.after(config.evaluation, before if config.evaluation.decides else (), folder.best),
            callbacks=callbacks,
        )

    def due(self, step: int) -> bool:
        """Return whether the samples are evaluated after a step, which is not the last one."""
        every = self.config.train.eval_every
        return every is not None and self.task.held_out is not None and not step % every and step < self.telemetry.steps

    def make(self) -> HeldOut:
        """Evaluate the present weights, or their averages, unless that was done already; every rank must call this.

        Raises: as `evaluate_task`.
            InvalidInput: the evaluation does not have what `evaluation.watch` names.
        """
        start, step = time.perf_counter(), self.pipeline.steps
        if self.last is not None and self.last[0] == step:
            return self.last[1]
        averaged = self.config.evaluation.average_decay is not None
        with self.pipeline.averaged() if averaged else nullcontext():
            found = evaluate_task(self.task, self.pipeline, self.config.train)
        self.last = step, found
        if self.task.held_out is None:
            return found
        line = EvaluationMetrics(step=step, loss=found.loss, metrics=dict(found.metrics))
        collective_call(self.pipeline.world, lambda: self._keep(line) if self.pipeline.world.rank == 0 else None)
        self.telemetry.evaluation(line, time.perf_counter() - start)
        figures = figures_of(found.loss, found.metrics)
        self._follow(step, figures)
        self.callbacks.call(lambda callback, training: callback.evaluation(training, figures))
        return found

    def _follow(self, step: int, figures: dict[str, float]) -> None:
        for scheduled in self.pipeline.state.optimizers:
            if scheduled.follows_evaluations:
                scheduled.evaluated(self.watch.value(figures))
        if self.config.evaluation.decides and self.watch.note(step, figures) and self.config.evaluation.keep_best:
            with Checkpoints(self.pipeline, self.folder.best, keep=1) as best:
                best.save(self.reader.position)

    def _keep(self, line: EvaluationMetrics) -> None:
        # A resumed run repeats the steps since its checkpoint.
        path = self.folder.evaluations
        before = [each for each in read_evaluations(path) if each.step < line.step]
        write_evaluations(path, [*before, line])
