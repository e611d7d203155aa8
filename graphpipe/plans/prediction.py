"""The predicted figures of a plan."""

from dataclasses import dataclass

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The simulator's figures for a plan."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step_seconds: float
    """Seconds of one mini-batch that starts with an empty pipeline and drains it."""
    bubble_fraction: float
    """Share of device time, over the devices in use, spent neither computing nor updating weights."""
    peak_bytes: tuple[float, ...]
    """The most bytes in use on each device of the cluster; 0 for an unused device."""
    steady_seconds: float | None = None
    """Seconds from one mini-batch to the next in the long run, without a flush. The bubble and the peak are then those
    of the steady state. None: the pipeline drains after every mini-batch."""

    @property
    def mini_batch_seconds(self) -> float:
        """Seconds per mini-batch in a long training."""
        return self.step_seconds if self.steady_seconds is None else self.steady_seconds
