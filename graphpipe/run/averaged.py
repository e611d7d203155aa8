"""The weights of evaluations and files, where they are others than training has: averages, or those of an optimizer."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.run.worker.user_weights import UserWeights


@contextmanager
def averaged(weights: UserWeights, optimizers: Sequence[ScheduledOptimizer], decay: float | None) -> Generator[None]:
    """Exchange the weights of this rank with their averages, until the end of the block.

    Raises:
        InvalidInput: there is no decay, so no averages are kept.
    """
    if decay is None:
        raise InvalidInput("no averages are kept", where="averaged", remedy="Give PipelineOptions(average_decay=).")
    _exchange(weights, optimizers)
    try:
        yield
    finally:
        _exchange(weights, optimizers)


@dataclass(slots=True)
class WeightModes:
    """The modes of optimizers that have other weights for evaluations, as those of the package `schedulefree` have."""

    weights: UserWeights
    """Of this rank."""
    optimizers: Sequence[ScheduledOptimizer]
    training: bool = True

    def set(self, *, training: bool) -> None:
        """Exchange the weights for those of steps, or of evaluations, unless they are there."""
        if training != self.training:
            self.resume(training=training)

    def resume(self, *, training: bool = True) -> None:
        """Set the mode of optimizers that may be in any mode, such as those of a checkpoint."""
        self.training = training
        if moded := [each for each in self.optimizers if each.has_modes]:
            for each in moded:
                each.set_mode(training=training)
            self.weights.changed()


def _exchange(weights: UserWeights, optimizers: Sequence[ScheduledOptimizer]) -> None:
    for scheduled in optimizers:
        if scheduled.average is not None:
            scheduled.average.swap()
    weights.changed()
