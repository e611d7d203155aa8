"""One run of a step on one rank: its tasks, transfers and reductions, in the order of the lowered schedule.

A run is of one mini-batch, or of the mini-batches of a segment. It is made new for each step, and ends with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from graphpipe.devices.cpu import HostStream
from graphpipe.model.torch_private import profiling
from graphpipe.run.faults.rank_status import ALL_PEERS
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.worker.joint_messages import hand_on
from graphpipe.run.worker.resolved_schedule import ResolvedSchedule, ResolvedTask
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.transfers import Transfers
from graphpipe.run.worker.worker import AnyReplica, AnyRun, Worker
from graphpipe.schedule import (
    Action,
    Compute,
    Fetch,
    LoweredSchedule,
    Offload,
    Receive,
    ReceiveOffloaded,
    Reduce,
    ReduceTied,
    Send,
    SendOffloaded,
)
from graphpipe.schedule.early_receives import EARLY_BYTES, EarlyReceives


def run_step(
    worker: Worker[AnyReplica, AnyRun], lowered: LoweredSchedule, batches: StepBatches, loss_fn: LossFunction | None
) -> Mapping[tuple[int, int], AnyRun]:
    """Run this rank's part of a step, and wait until its last message is sent.

    Args:
        worker: this rank.
        lowered: the schedule of all ranks.
        batches: the mini-batches.
        loss_fn: of the pipeline; None computes no loss.

    Returns:
        The runs of this rank's replicas, by stage and device, with what they have computed.

    Raises:
        InvalidInput: another rank was given another mini-batch, or a value does not fit its consumers.
        PeerLost, PeerStalled: another rank is gone.
    """
    for sync in worker.syncs.values():
        sync.begin() if batches.mini_batches[0].training else sync.begin_evaluation()
    schedule = worker.resolve(lowered, batches)
    runs = {key: worker.new_run(replica, loss_fn) for key, replica in worker.replicas.items()}
    transfers = Transfers(worker=worker, batches=batches, runs=runs)
    early = EarlyReceives(
        begin=transfers.receive, size_of=transfers.size_of, room=None if worker.world.in_order else EARLY_BYTES
    )
    step = StepRun(
        worker=worker,
        batches=batches,
        runs=runs,
        transfers=transfers,
        early=early,
        recorded=worker.recorder.on or profiling(),
    )
    try:
        with worker.streams.forked():
            step.run(schedule)
    except BaseException:
        for run in runs.values():  # The frames of the error refer to these messages, and they keep connections open.
            run.received.by_task.clear()
        raise
    for sync in worker.syncs.values():
        sync.end()
    worker.monitor.enter("summary", peer=ALL_PEERS)
    worker.drain()
    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun(Generic[AnyReplica, AnyRun]):
    """What one run of a step needs besides its schedule."""

    worker: Worker[AnyReplica, AnyRun]
    """This rank."""
    batches: StepBatches
    """The mini-batches of the run."""
    runs: Mapping[tuple[int, int], AnyRun]
    """The runs of this rank's replicas, by stage and device."""
    transfers: Transfers[AnyReplica, AnyRun]
    """The sends and receives of the run."""
    early: EarlyReceives
    """Begins receives before the schedule lists them."""
    recorded: bool
    """Whether the recorder or torch's profiler records the tasks."""

    def run(self, schedule: ResolvedSchedule) -> None:
        """Do the actions of this rank in order."""
        for task in schedule.first_tasks:
            self._compute(task)
        self.worker.messages.finish_comparison()
        receives = (action.transfer for _, action in schedule.rest if isinstance(action, Receive))
        self.early.start(transfer for transfer in receives if self.transfers.is_remote(transfer))
        for device, action in schedule.rest:
            self._run_action(device, action)
        assert not self.transfers.held.held, "a gradient was held, and not sent with another"

    def _run_action(self, device: int, action: ResolvedTask | Action) -> None:
        worker = self.worker
        match action:
            case ResolvedTask():
                self._compute(action)
            case Send(transfer):
                self.transfers.send(transfer)
            case Receive(transfer):
                self.early.reach(transfer)
            case Reduce(stage):
                worker.monitor.enter("reduce", stage, peer=ALL_PEERS)
                self._join_streams({stage})
                with worker.recorder.span(device, "reduce", stage):
                    worker.syncs[stage].reduce()
            case ReduceTied(number):
                first = next(stage for stage, replica_device in self.runs if replica_device == device)
                worker.monitor.enter("reduce", first, peer=ALL_PEERS)
                self._join_streams({*worker.placement.plan.tied_gradients[number].stages})
                with worker.recorder.span(device, "reduce", first):
                    worker.tied_parameters[number].sum_gradients(worker.world)
            case Offload(stage, micro_batch):
                with worker.recorder.span(device, "evict", stage, micro_batch):
                    self.runs[stage, device].offload(micro_batch)
            case Fetch(stage, micro_batch):
                with worker.recorder.span(device, "fetch", stage, micro_batch):
                    self.runs[stage, device].fetch(micro_batch)
            case ReceiveOffloaded() | SendOffloaded():
                peer = worker.placement.rank_of[action.source_device]
                if worker.offloads is not None and peer != worker.world.rank:
                    with worker.streams.host(device).out.entered():
                        worker.offloads.take_part(action, peer)
            case Compute():
                raise AssertionError("tasks were resolved")

    def _compute(self, turn: ResolvedTask) -> None:
        if isinstance(turn.stream, HostStream):  # entering its context would only cost time
            self._run_task(turn)
            return
        streams, run = self.worker.streams, self.runs[turn.replica]
        memory = streams.lent_memory(turn.stream)
        memory.settle()
        training = self.batches.mini_batches[turn.mini_batch].training
        used = run.last_uses(turn.task, training=training)
        if turn.task.kind == "U":
            entered = self.worker.streams.updating(turn.device, self._weights(turn.task.stage))
        else:
            entered = turn.stream.entered()
        with entered:
            self._run_task(turn)
        for edge, direction, values in used:
            memory.give_back(streams.edge_buffers(streams.edge(edge, direction)), values)

    def _weights(self, stage: int) -> dict[int, list[Tensor]]:
        # The weights and gradients of the replicas of a stage, by device.
        return {
            device: [tensor for p in replica.parameters for tensor in (p.data, p.grad) if tensor is not None]
            for (number, device), replica in self.worker.replicas.items()
            if number == stage
        }

    def _run_task(self, turn: ResolvedTask) -> None:
        worker, task, run = self.worker, turn.task, self.runs[turn.replica]
        recorder, mini_batches = worker.recorder, self.batches.mini_batches
        batch = mini_batches[turn.mini_batch]
        if len(mini_batches) > 1:
            worker.monitor.begin_step(batch.step)
        if run.received.by_task:
            self._wait_for_values(turn, run)
        if turn.taken:
            worker.messages.release(turn.taken)
        worker.monitor.enter(turn.phase, task.stage, task.micro_batch)
        if self.recorded:
            with recorder.span_of(turn.doing, turn.device):
                run.do(task, turn.rows, batch)
            return
        recorder.doing = turn.doing
        run.do(task, turn.rows, batch)
        recorder.doing = None

    def _wait_for_values(self, turn: ResolvedTask, run: AnyRun) -> None:
        worker, task, received = self.worker, turn.task, run.received
        for message in received.waiting(task):
            peer = worker.placement.devices(message.peer)[0]
            worker.monitor.enter("receive", task.stage, task.micro_batch, message.peer)
            with worker.recorder.span(turn.device, "receive", task.stage, task.micro_batch, peer, message.rows.nbytes):
                message.wait()
            hand_on(message, turn.stream)
            self.early.used(message.rows.nbytes)
        for message in received.copied(task):
            if message.readers:  # The task that it came for has not run.
                message.wait()
                hand_on(message, turn.stream)
        received.enter(task, turn.stream)

    def _join_streams(self, stages: set[int]) -> None:
        # The caller's stream reads the gradients of these stages, and frees them while their devices have other tasks.
        streams = self.worker.streams
        if not isinstance(streams.main, HostStream):
            for stage in stages:
                streams.join(self._weights(stage))
