"""The evaluations of a training: in between, at its end, and those before it was resumed."""

import time
from dataclasses import dataclass

from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.pipeline import Pipeline
from graphpipe.training.config.settings import TrainSettings
from graphpipe.training.evaluate_task import HeldOut, evaluate_task
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics, read_evaluations, write_evaluations
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import Task
from graphpipe.training.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """Evaluates the held-out samples, reports what is found, and keeps it in the run's folder."""

    task: Task
    pipeline: Pipeline
    settings: TrainSettings
    telemetry: Telemetry
    folder: RunFolder

    def due(self, step: int) -> bool:
        """Return whether the samples are evaluated after a step, which is not the last one."""
        every = self.settings.eval_every
        return every is not None and self.task.held_out is not None and not step % every and step < self.telemetry.steps

    def make(self) -> HeldOut:
        """Evaluate the present weights; every rank must call this.

        Raises: as `evaluate_task`.
        """
        start, step = time.perf_counter(), self.pipeline.steps
        found = evaluate_task(self.task, self.pipeline, self.settings)
        if self.task.held_out is None:
            return found
        line = EvaluationMetrics(step=step, loss=found.loss, metrics=dict(found.metrics))
        collective_call(self.pipeline.world, lambda: self._keep(line) if self.pipeline.world.rank == 0 else None)
        self.telemetry.evaluation(line, time.perf_counter() - start)
        return found

    def _keep(self, line: EvaluationMetrics) -> None:
        # A resumed run repeats the steps since its checkpoint.
        path = self.folder.evaluations
        before = [each for each in read_evaluations(path) if each.step < line.step]
        write_evaluations(path, [*before, line])
