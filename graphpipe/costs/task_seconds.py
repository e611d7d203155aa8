"""The seconds of a stage's tasks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Seconds of the tasks of one stage, for one micro-batch on one device."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def backward(self) -> float:
        """The fused backward: input and weight gradient in one pass."""
        return self.input_gradient + self.weight_gradient
