"""Where the figures of a training go, for people who watch many trainings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class MetricLogger(ABC):
    """Takes numbers by name and step. Only rank 0 of a training has any."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of a step.

        Args:
            step: from 1; never goes back.
            metrics: by name, such as `train/loss`.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet; nothing follows."""
