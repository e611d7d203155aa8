"""The result of a training: metrics.json."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.plans import Plan
from graphpipe.trace.compare import settled_seconds
from graphpipe.training.run_folder.metrics_log import StepMetrics
from graphpipe.training.run_folder.recoveries import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The figures of a training, with the names that metrics.json and `graphpipe train --json` use."""

    stages: int
    depth: int
    steps: int
    batch_size: int
    loss_first: float
    loss_last: float
    loss_held_out: float | None
    """None if the task has no held-out samples, or no targets of them."""
    accuracy: float | None
    step_seconds_predicted: float | None
    step_seconds_measured: float
    """Median over the steps after the warm-up, which is the first ten steps, or a quarter of fewer than forty."""
    samples_per_second: float
    train_seconds: float
    recoveries: tuple[Recovery, ...] = ()
    """Each time an elastic run continued on other devices."""

    @staticmethod
    def of(
        plan: Plan,
        history: Sequence[StepMetrics],
        *,
        loss: float | None,
        accuracy: float | None,
        recoveries: tuple[Recovery, ...] = (),
    ) -> "TrainResult":
        """Return the result of these steps.

        Args:
            plan: that was run.
            history: at least one step.
            loss: of the held-out samples.
            accuracy: on the held-out samples.
            recoveries: of the run.
        """
        seconds = settled_seconds([step.seconds for step in history])
        return TrainResult(
            stages=len(plan.stages),
            depth=plan.depth,
            steps=history[-1].step,
            batch_size=plan.batch_size,
            loss_first=history[0].loss,
            loss_last=history[-1].loss,
            loss_held_out=loss,
            accuracy=accuracy,
            step_seconds_predicted=plan.prediction.step_seconds if plan.prediction else None,
            step_seconds_measured=seconds,
            samples_per_second=plan.batch_size / seconds,
            train_seconds=sum(step.seconds for step in history),
            recoveries=recoveries,
        )
