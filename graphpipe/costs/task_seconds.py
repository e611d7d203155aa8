"""The seconds of a stage's tasks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Seconds of the tasks of one stage, for one micro-batch on one device."""

    forward: float
    input_gradient: float
    weight_gradient: float
    input_half: float
    """Seconds of the first half of a split backward, for the gradients of the values."""
    weight_half: float
    """Seconds of the second half, for those of the parameters."""

    @property
    def backward(self) -> float:
        """The fused backward: input and weight gradient in one pass."""
        return self.input_gradient + self.weight_gradient

    def of(self, kind: Literal["F", "B", "I", "W", "U"], overhead: float) -> float:
        """Return the seconds of a task: a forward, a backward, or its half for the input or for the weights.

        Args:
            kind: of the task.
            overhead: seconds of the runtime for each task. A backward in two halves is a task more.
        """
        match kind:
            case "F":
                return self.forward
            case "B":
                return self.backward
            case "I":
                return self.input_half
            case "W":
                return self.weight_half + overhead
            case "U":
                raise AssertionError("an update is not a task of a micro-batch")
