"""The predicted figures of a plan."""

from dataclasses import dataclass

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The simulator's figures for a plan."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step_seconds: float
    bubble_fraction: float
    """Share of device time, over the devices in use, spent neither computing nor updating weights."""
    peak_bytes: tuple[float, ...]
    """One per device of the cluster; 0 for an unused device."""
