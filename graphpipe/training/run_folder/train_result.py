"""The result of a training: metrics.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

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
    """On the held-out samples; None if the task has no accuracy function, or no held-out samples."""
    step_seconds_predicted: float | None
    """Of a mini-batch in a long training: without a flush, they overlap."""
    step_seconds_measured: float
    """Median over the steps after the warm-up, which is the first ten steps, or a quarter of fewer than forty."""
    samples_per_second: float
    train_seconds: float
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What the task's `accuracy` and `metrics` returned for the held-out samples, by name."""
    recoveries: tuple[Recovery, ...] = ()
    """Each time an elastic run continued on other devices."""
    why_ended: str = ""
    """Why the training ended before its last step; empty if it did not."""
    best_step: int | None = None
    """Steps done at the best evaluation; None if no setting of `evaluation` asks for it."""
    best: float | None = None
    """What that evaluation found of `evaluation.watch`."""

    @staticmethod
    def of(
        plan: Plan,
        history: Sequence[StepMetrics],
        *,
        loss: float | None,
        accuracy: float | None,
        metrics: Mapping[str, float] = MappingProxyType({}),
        recoveries: tuple[Recovery, ...] = (),
        why_ended: str = "",
        best_step: int | None = None,
        best: float | None = None,
    ) -> "TrainResult":
        """Return the result of these steps.

        Args:
            plan: that was run.
            history: at least one step.
            loss: of the held-out samples.
            accuracy: on the held-out samples.
            metrics: of the held-out samples, by name.
            recoveries: of the run.
            why_ended: why it ended before its last step.
            best_step: steps done at the best evaluation.
            best: what that found.
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
            step_seconds_predicted=plan.prediction.mini_batch_seconds if plan.prediction else None,
            step_seconds_measured=seconds,
            samples_per_second=plan.batch_size / seconds,
            train_seconds=sum(step.seconds for step in history),
            metrics=dict(metrics),
            recoveries=recoveries,
            why_ended=why_ended,
            best_step=best_step,
            best=best,
        )
