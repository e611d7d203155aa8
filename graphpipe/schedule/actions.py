"""What devices do, in order: tasks, transfers, reductions, and copies to and from their node or a neighbour.

A lowered schedule lists the actions of all devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule.schedule import StageTask


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """One message along a stage edge: the rows of one sample range, for the values on that edge.

    A forward transfer carries outputs from the edge's source to its target. A backward transfer carries gradients
    back. Between two stages on one device nothing is sent: the tensors are handed over. The transfer is listed anyway.
    """

    edge: int
    """Position in `Plan.edges`."""
    direction: Literal["forward", "backward"]
    source_device: int
    target_device: int
    samples: SampleRange
    """Positions in the mini-batch, or in the mini-batches of a segment, one after the other."""
    source_task: StageTask
    target_task: StageTask
    without: tuple[int, ...] = ()
    """Other edges (positions in `Plan.edges`) whose values this transfer leaves out: for the same samples, the transfer
    of one of them between the same devices carries them. See `plans.joint_edges`."""

    def bytes(self, plan: Plan) -> float:
        """Return the bytes that it carries. Values that get no gradient carry none back."""
        backward = self.direction == "backward"
        return plan.sent_bytes(self.edge, self.without, backward=backward) * len(self.samples)


@dataclass(frozen=True, slots=True)
class Compute:
    """Do a task."""

    task: StageTask


@dataclass(frozen=True, slots=True)
class Send:
    """Start to send, without waiting for the end of the transfer."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Receive:
    """Start to receive. The transfer's target task waits for the end of the transfer."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the gradients of a stage over its replicas."""

    stage: int
    mini_batch: int = 0
    """Number of the mini-batch in its segment."""


@dataclass(frozen=True, slots=True)
class ReduceTied:
    """Sum the gradients of parameters that stages share, over all replicas of these stages."""

    tied_gradients: int
    """Position in `Plan.tied_gradients`."""
    mini_batch: int = 0
    """Number of the mini-batch in its segment."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Start to copy what a stage offloads of a micro-batch to the memory of the node, or to a neighbour, right after
    its forward."""

    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Start to copy it back, right before the task that precedes the micro-batch's backward on this device."""

    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class ReceiveOffloaded:
    """Start to receive what a stage on another device offloads to this one. It stands right after the `Offload`."""

    stage: int
    micro_batch: int
    source_device: int


@dataclass(frozen=True, slots=True)
class SendOffloaded:
    """Start to send back what a stage on another device fetches. It stands right after the `Fetch`."""

    stage: int
    micro_batch: int
    source_device: int


Action = Compute | Send | Receive | Reduce | ReduceTied | Offload | Fetch | ReceiveOffloaded | SendOffloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredSchedule:
    """The actions of every device, in order.

    All lists are sub-sequences of one total order. In it the Send and the Receive of a transfer stand together, right
    after the task that produced the transfer. So two devices issue their common transfers in the same order, as NCCL
    requires. There is no deadlock, because the earliest unfinished action of the total order can always proceed.
    """

    devices: tuple[tuple[Action, ...], ...]
    order: tuple[tuple[int, Action], ...]
    """All actions in their total order, as (device, action)."""
    batch_size: int
    """Samples of the mini-batch, or of all mini-batches of a segment."""
    awaited: Mapping[tuple[int, StageTask], Sequence[Transfer]] = field(default_factory=dict[Any, Any], hash=False)
    """Transfers to a device that must have arrived before a task of an evaluation, by device and task. Each is received
    earlier in the total order, so waiting for it cannot deadlock."""

    def last_backwards(self) -> dict[tuple[int, int], StageTask]:
        """Return the last backward, or weight half of a backward, by stage and device."""
        return {
            (action.task.stage, device): action.task
            for device, action in self.order
            if isinstance(action, Compute) and action.task.kind in ("B", "W")
        }
