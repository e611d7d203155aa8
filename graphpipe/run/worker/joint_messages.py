"""Values that several stages of one device read: they come once, and the sum of their gradients goes back once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from graphpipe.devices.device_kind import Stream
from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.messages import PendingMessage
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.receive_buffers import NamedTensors, ReceiveBuffers
from graphpipe.schedule import StageTask, Transfer


class HeldGradient(NamedTuple):
    """A gradient that waits for that of another stage of its device."""

    edge: int
    """Position in `Plan.edges` of the edge that it did not go along."""
    rows: Tensor


BuffersOf = Callable[[int], ReceiveBuffers]


@dataclass(slots=True)
class HeldGradients:
    """The gradients of a rank that are not sent themselves, because they are added to others."""

    held: dict[tuple[int, int, SampleRange, str], list[HeldGradient]] = field(
        default_factory=dict[tuple[int, int, SampleRange, str], list[HeldGradient]]
    )
    """The gradients, by the edge that carries the sum, the device, the samples and the value."""

    def hold(self, transfer: Transfer, gradients: NamedTensors, specs: EdgeSpecs) -> None:
        """Keep the gradients of the values that a transfer leaves out.

        Args:
            transfer: of gradients.
            gradients: of all values on its edge, for its samples.
            specs: the values on every edge.
        """
        sent = {spec.name for spec in sent_values(transfer, specs)}
        for name in gradients.keys() - sent:
            key = carrier(transfer, name, specs), transfer.source_device, transfer.samples, name
            self.held.setdefault(key, []).append(HeldGradient(transfer.edge, gradients[name]))

    def add_to(self, transfer: Transfer, name: str, rows: Tensor) -> Tensor:
        """Return the gradient that a transfer sends: its own, and what was held for it in ascending order of edges."""
        others = self.held.pop((transfer.edge, transfer.source_device, transfer.samples, name), ())
        for other in sorted(others, key=lambda gradient: gradient.edge):
            rows = rows + other.rows
        return rows


def sent_values(transfer: Transfer, specs: EdgeSpecs) -> Sequence[ValueSpec]:
    """Return the values that the messages of a transfer carry."""
    values = all_values(transfer, specs)
    if not transfer.without:
        return values
    elsewhere = {spec.name for edge in transfer.without for spec in specs[edge]}
    return [spec for spec in values if spec.name not in elsewhere]


def size_of(transfer: Transfer, specs: EdgeSpecs) -> int:
    """Return the bytes of the values that a transfer carries."""
    return sum(spec.bytes_per_sample for spec in sent_values(transfer, specs)) * len(transfer.samples)


def all_values(transfer: Transfer, specs: EdgeSpecs) -> Sequence[ValueSpec]:
    """Return the values of a transfer's edge in its direction, with those that it leaves out."""
    values = specs[transfer.edge]
    return [spec for spec in values if spec.requires_grad] if transfer.direction == "backward" else values


def carrier(transfer: Transfer, name: str, specs: EdgeSpecs) -> int:
    """Return the edge that carries a value which a transfer leaves out: the first that has it."""
    return next(edge for edge in transfer.without if any(spec.name == name for spec in specs[edge]))


def copy_left_out(
    transfer: Transfer, name: str, rows: Tensor, specs: EdgeSpecs, stage_of: Sequence[int], buffers: BuffersOf
) -> None:
    """Let a task take a value that its transfer leaves out from the message for another task of its device.

    The receive of that message began before, and the other task has not run, because both transfers stand together in
    the order of the schedule.

    Args:
        transfer: of outputs.
        name: of the value.
        rows: where the copy goes.
        specs: the values on every edge.
        stage_of: the target of every edge.
        buffers: returns the buffers of a stage on the device.
    """
    edge, task = carrier(transfer, name, specs), transfer.target_task
    other = StageTask("F", stage_of[edge], task.micro_batch)
    message = buffers(other.stage).by_task[other].arriving[edge, name, transfer.samples.start]
    buffers(task.stage).copy_from(task, message, rows)


def hand_on(message: PendingMessage, stream: Stream) -> None:
    """Copy a message, which has arrived on `stream`, for the other tasks of its device that read the same value."""
    if not message.readers:
        return
    for reader in message.readers:
        reader.rows.copy_(message.rows)
    mark = stream.mark()
    for reader in message.readers:
        reader.ready(mark)
    message.arrived(mark)
    message.readers.clear()
