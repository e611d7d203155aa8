"""The lowered schedule: tasks, transfers and reductions of each device in an order that cannot deadlock."""

from dataclasses import dataclass
from typing import Literal

from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule.schedule import Task


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """One message along a stage edge: the rows of one sample range, for all values on that edge.

    A forward transfer carries outputs from the edge's source to its target, a backward one gradients back.
    Between two stages on one device it is a hand-over: no message, but listed all the same.
    """

    edge: int
    """Position in `Plan.edges`."""
    direction: Literal["forward", "backward"]
    source_device: int
    target_device: int
    samples: SampleRange
    """In the mini-batch."""
    source_task: Task
    target_task: Task


@dataclass(frozen=True, slots=True)
class Compute:
    """Do a task."""

    task: Task


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending, without waiting for it to end."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving; the transfer's target task waits for it."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the gradients of a stage over its replicas."""

    stage: int


@dataclass(frozen=True, slots=True)
class ReduceShared:
    """Sum the gradients of parameters that stages share, over all replicas of these stages."""

    exchange: int
    """Position in `Plan.exchanges`."""


Action = Compute | Send | Receive | Reduce | ReduceShared


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredSchedule:
    """What every device does, in order.

    All lists are sub-sequences of one total order in which a transfer (its Send and its Receive stand together)
    comes right after the task that produced it. So two devices issue their common transfers in the same order, as
    NCCL needs, and the earliest unfinished action of the total order can always proceed: no deadlock.
    """

    devices: tuple[tuple[Action, ...], ...]
    order: tuple[tuple[int, Action], ...]
    """The total order, as (device, action)."""
    batch_size: int
    """Samples of the mini-batch it was lowered for."""

    def last_backwards(self) -> dict[tuple[int, int], Task]:
        """Return the last backward, or weight half, of each stage on each device, by stage and device."""
        return {
            (action.task.stage, device): action.task
            for device, action in self.order
            if isinstance(action, Compute) and action.task.kind in ("B", "W")
        }
