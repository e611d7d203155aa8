"""What the activities of a simulated step stand for."""

from dataclasses import dataclass
from typing import Literal

from graphpipe.schedule import Reduce, ReduceTied, StageTask, Transfer


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """The optimizer step of a device."""

    device: int


@dataclass(frozen=True, slots=True)
class WeightGather:
    """The replicas of a stage gather its sharded weights before the first task."""

    stage: int


@dataclass(frozen=True, slots=True)
class MessageHandling:
    """The work of a device to send or receive messages."""

    device: int


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A device copies what a stage offloads of a micro-batch to the memory of its node or to a neighbour, or back."""

    device: int
    kind: Literal["evict", "fetch"]
    stage: int
    micro_batch: int
    bytes: float
    neighbour: int | None


SimulatedWork = (
    tuple[int, StageTask] | Transfer | MessageHandling | HostCopy | Reduce | ReduceTied | WeightGather | OptimizerStep
)
"""The meaning of an activity. A pair is a device and its task."""
