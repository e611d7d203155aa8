"""What follows from the evaluations of a training: which one is the best so far, and whether to end early."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import InvalidInput, nearest
from graphpipe.run.checkpoint.folder import list_checkpoints, step_of
from graphpipe.training.config.evaluation_settings import LOSS, EvaluationSettings
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics


@dataclass(slots=True)
class EvaluationWatch:
    """Compares evaluations. Every rank sees the same figures, so all ranks decide alike without a message."""

    settings: EvaluationSettings
    best_step: int | None = None
    """Steps done at the best evaluation; None before the first."""
    best: float | None = None
    """What it found."""
    worse: int = 0
    """Evaluations since then."""

    @staticmethod
    def after(settings: EvaluationSettings, evaluations: Sequence[EvaluationMetrics], best: Path) -> "EvaluationWatch":
        """Return the watch of a training that goes on after some evaluations.

        Args:
            settings: of the training.
            evaluations: made before.
            best: the folder of the best checkpoint. If that is missing, the next evaluation is the best.
        """
        watch = EvaluationWatch(settings)
        for each in evaluations:
            watch.note(each.step, figures_of(each.loss, each.metrics))
        kept = [step_of(checkpoint) for checkpoint in list_checkpoints(best)]
        if settings.keep_best and watch.best_step not in kept:
            watch.best_step = watch.best = None
        return watch

    def value(self, figures: Mapping[str, float]) -> float:
        """Return the figure that is watched.

        Raises:
            InvalidInput: the evaluation does not have it.
        """
        name = self.settings.watch
        if name not in figures:
            raise InvalidInput(
                f"is '{name}', which the evaluations do not have",
                where="evaluation.watch",
                remedy=nearest(name, [*figures]) if figures else "Give the task targets of its held-out samples.",
            )
        return figures[name]

    def note(self, step: int, figures: Mapping[str, float]) -> bool:
        """Take an evaluation, and return whether it is the best so far.

        Raises:
            InvalidInput: as `value`.
        """
        value = self.value(figures)
        if self.settings.improves(value, self.best):
            self.best_step, self.best, self.worse = step, value, 0
            return True
        self.worse += 1
        return False

    @property
    def why_stop(self) -> str:
        """Why the training ends now; empty if it goes on."""
        patience = self.settings.patience
        if patience is None or self.worse < patience:
            return ""
        since = "yet" if self.best_step is None else f"since step {self.best_step}"
        return f"{self.settings.watch} has not become better {since}, in {self.worse} evaluations"


def figures_of(loss: float | None, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of an evaluation by name: the loss, if there is one, and the metrics."""
    return ({} if loss is None else {LOSS: loss}) | dict(metrics)


def forget_best_after(folder: Path, step: int) -> None:
    """Remove best checkpoints of later steps, which a resumed run repeats."""
    for checkpoint in list_checkpoints(folder):
        if step_of(checkpoint) > step:
            shutil.rmtree(checkpoint, ignore_errors=True)
