"""What a training does with its evaluations: keeps the best checkpoint, ends early, averages weights."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.training.config.numbers import at_least_one, not_negative

LOSS, ACCURACY = "loss", "accuracy"
"""Figures of an evaluation: the held-out loss, and what the task's accuracy function returned."""
Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What the evaluations of the held-out samples decide. `train.eval_every` says when they are made."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    watch: str = LOSS
    """The figure that says which evaluation is the best: `loss`, `accuracy`, or a name that the task's metrics return.
    ReduceLROnPlateau follows it too."""
    mode: Mode | None = None
    """Whether the best is the least (`min`) or the greatest (`max`). `loss` and `accuracy` need no mode."""
    min_delta: float = 0.0
    """By how much an evaluation must be better than the best before to count."""
    keep_best: bool = False
    """Keep the checkpoint of the best evaluation in `best/` of the run's folder."""
    patience: int | None = None
    """End the training after so many evaluations, one after another, that were not better. By default it does all of
    its steps."""
    average_decay: float | None = None
    """Keep exponential averages of the weights with this decay, such as 0.999. They are evaluated in place of the
    weights, and saved beside them. By default there are none."""

    def __post_init__(self) -> None:
        not_negative("evaluation.min_delta", self.min_delta)
        at_least_one("evaluation.patience", 1 if self.patience is None else self.patience)
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise InvalidInput(f"is {self.average_decay}, must be between 0 and 1", where="evaluation.average_decay")
        if self.mode is None and self.watch not in (LOSS, ACCURACY):
            raise InvalidInput(
                f"is not given, and evaluation.watch is '{self.watch}'",
                where="evaluation.mode",
                remedy="Say `min` if less is better, or `max`.",
            )

    @property
    def better(self) -> Mode:
        """Whether less or more is better."""
        return self.mode or ("max" if self.watch == ACCURACY else "min")

    @property
    def decides(self) -> bool:
        """Whether a training goes otherwise by what its evaluations find."""
        return self.keep_best or self.patience is not None

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether a value is better than the best before; NaN never is."""
        if best is None:
            return value == value
        return value < best - self.min_delta if self.better == "min" else value > best + self.min_delta
