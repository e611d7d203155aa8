"""The transfers of one run of a step: values and gradients that go from replica to replica.

A transfer between two devices of one rank is a copy, which the send makes; the receive does nothing. Between two ranks
it is a message for every value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from torch import Tensor

from graphpipe.devices.device_kind import Stream
from graphpipe.run.stage.edge_values import check_message
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.worker.joint_messages import HeldGradients, all_values, copy_left_out, sent_values, size_of
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.worker import AnyReplica, AnyRun, Worker
from graphpipe.schedule import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers(Generic[AnyReplica, AnyRun]):
    """The sends and receives of one rank in one run of a step."""

    worker: Worker[AnyReplica, AnyRun]
    """This rank."""
    batches: StepBatches
    """The mini-batches of the run."""
    runs: Mapping[tuple[int, int], AnyRun]
    """The runs of this rank's replicas, by stage and device."""
    held: HeldGradients = field(default_factory=HeldGradients)
    """Gradients of values that several stages of a device read."""

    def send(self, transfer: Transfer) -> None:
        """Start to send what the last task of a replica has made, or copy it within this rank."""
        source, streams = self.runs[transfer.source_task.stage, transfer.source_device], self.worker.streams
        assert source.outgoing_task == transfer.source_task, "a transfer must directly follow the task that made it"
        stream, tasks = streams.edge(transfer.edge, transfer.direction), streams.tasks(transfer.source_device)
        with tasks.entered():
            leaving = self._leaving(transfer, source.outgoing[transfer.edge])
        stream.wait(tasks.mark())
        streams.edge_buffers(stream).settle()
        with stream.entered():
            self._copy_or_send(transfer, leaving, stream)
        streams.lent_memory(tasks).lend(leaving.values(), stream)

    def receive(self, transfer: Transfer) -> int:
        """Start to receive a transfer from another rank, and return the bytes of its messages."""
        worker, specs = self.worker, self.batches.specs
        peer = worker.placement.rank_of[transfer.source_device]
        target = self.runs[transfer.target_task.stage, transfer.target_device]
        stream = worker.streams.edge(transfer.edge, transfer.direction)
        worker.streams.edge_buffers(stream).settle()
        with stream.entered():
            buffers = self._buffers(transfer)
            joint = transfer.direction == "forward" and bool(worker.placement.plan.joint_edges.outputs)
            sent = {spec.name for spec in sent_values(transfer, specs)}
            coming = {name: rows for name, rows in buffers.items() if name in sent}
            messages = worker.messages.receive([*coming.values()], peer)
            for name, message in zip(coming, messages, strict=True):
                target.received.expect(transfer.target_task, message)
                if joint:
                    target.received.lend(transfer.target_task, (transfer.edge, name, transfer.samples.start), message)
            for name, rows in buffers.items():
                if name not in sent:
                    self._copy_left_out(transfer, name, rows)
        return sum(rows.nbytes for rows in coming.values())

    def size_of(self, transfer: Transfer) -> int:
        """Return the bytes of a transfer's messages."""
        return size_of(transfer, self.batches.specs)

    def is_remote(self, transfer: Transfer) -> bool:
        """Return whether a transfer comes from another rank."""
        return self.worker.placement.rank_of[transfer.source_device] != self.worker.world.rank

    def _leaving(self, transfer: Transfer, outgoing: NamedTensors) -> NamedTensors:
        # What the transfer carries, by name: rows of the values, with the gradients that were held for them.
        worker, specs, monitor = self.worker, self.batches.specs, self.worker.monitor
        stage = worker.placement.plan.stages[transfer.source_task.stage]
        window = transfer.samples.rows_of(self.batches.rows_of(transfer.source_task, stage, transfer.source_device))
        here = worker.placement.rank_of[transfer.target_device] == worker.world.rank
        copied = here and transfer.direction == "forward"
        if transfer.without and transfer.direction == "backward":
            self.held.hold(transfer, {name: value[window] for name, value in outgoing.items()}, specs)
        leaving: NamedTensors = {}
        for spec in all_values(transfer, specs) if copied else sent_values(transfer, specs):
            rows = outgoing[spec.name][window]
            if self.held.held and transfer.direction == "backward":
                rows = self.held.add_to(transfer, spec.name, rows)
            if not here:
                monitor.enter("send", transfer.source_task.stage, transfer.source_task.micro_batch)
                rows = monitor.corrupt("send", rows).contiguous()
            check_message(rows, spec, len(transfer.samples))
            leaving[spec.name] = rows
        return leaving

    def _copy_or_send(self, transfer: Transfer, leaving: NamedTensors, stream: Stream) -> None:
        worker = self.worker
        peer = worker.placement.rank_of[transfer.target_device]
        if peer != worker.world.rank:
            if leaving:
                worker.messages.send([*leaving.values()], peer, transfer)
            return
        buffers = self._buffers(transfer)
        for name, rows in leaving.items():
            buffers[name].copy_(rows)
        received = self.runs[transfer.target_task.stage, transfer.target_device].received
        received.note(transfer.target_task, stream.mark())

    def _copy_left_out(self, transfer: Transfer, name: str, rows: Tensor) -> None:
        stage_of = [edge.target for edge in self.worker.placement.plan.edges]
        device = transfer.target_device
        copy_left_out(
            transfer, name, rows, self.batches.specs, stage_of, lambda stage: self.runs[stage, device].received
        )

    def _buffers(self, transfer: Transfer) -> dict[str, Tensor]:
        # The rows of the target's buffers that this transfer fills, in the order of its values.
        task, device, plan = transfer.target_task, transfer.target_device, self.worker.placement.plan
        all_rows = self.batches.rows_of(task, plan.stages[task.stage], device)
        forward, specs = transfer.direction == "forward", self.batches.specs
        values = all_values(transfer, specs) if forward else sent_values(transfer, specs)
        # Replicas on the target's device send the gradients of joint values, others add them to those on other edges.
        zero = not forward and transfer.edge in plan.joint_edges.gradients
        received = self.runs[task.stage, device].received
        buffers = received.buffers(task, transfer.edge, values, len(all_rows), zero=zero)
        return {name: buffer[transfer.samples.rows_of(all_rows)] for name, buffer in buffers.items()}
