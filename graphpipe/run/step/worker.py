"""The worker: runs the actions of one rank's devices in the order of the lowered schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar, cast

from torch import Tensor

from graphpipe.model.torch_private import profiling
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.device.stream import HostStream, Stream
from graphpipe.run.faults.rank_status import ALL_PEERS
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.edge_values import check_message
from graphpipe.run.stage.joint_messages import HeldGradients, all_values, copy_left_out, hand_on, sent_values, size_of
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.stage.replica import Replica
from graphpipe.run.stage.segment import Segment
from graphpipe.run.step.recorder import CurrentWork, Recorder
from graphpipe.run.step.resolved_schedule import ResolvedSchedule, ResolvedTask
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.run.weights.tied_parameters import TiedParameters
from graphpipe.schedule import (
    Action,
    Compute,
    Evict,
    Fetch,
    Hold,
    LoweredSchedule,
    Receive,
    Reduce,
    ReduceTied,
    Return,
    Send,
    StageTask,
    Transfer,
)
from graphpipe.schedule.acknowledged_sends import AcknowledgedSends, find_acknowledged_sends
from graphpipe.schedule.early_receives import EARLY_BYTES, EarlyReceives

_KEPT = 4
"""Schedules that are kept ready to run."""


AnyReplica = TypeVar("AnyReplica", bound=Replica)


@dataclass(slots=True, kw_only=True)
class Worker(Generic[AnyReplica]):
    """One rank: the stage replicas it hosts and its connections to the others.

    A transfer between two devices of this rank is a copy, which the send makes; the receive does nothing. Everything
    else is the same for one rank and for many.
    """

    placement: Placement
    world: World
    replicas: dict[tuple[int, int], AnyReplica]
    """By stage and device."""
    syncs: Mapping[int, ReplicaSync]
    """The synchronisation of replicas, by stage that this rank hosts."""
    messages: RankMessages
    streams: StageStreams
    recorder: Recorder
    monitor: StatusReporter
    tied_parameters: Sequence[TiedParameters] = ()
    """By position in `Plan.tied_gradients`."""
    held: HeldGradients = field(default_factory=HeldGradients)
    """Gradients of values that several stages of a device read."""
    resolved: dict[int, ResolvedSchedule[AnyReplica]] = field(
        default_factory=lambda: dict[int, ResolvedSchedule[AnyReplica]]()
    )
    """The schedules that were run last, by `id(lowered)`: of training, and of evaluations in between."""
    recorded: bool = True
    """Whether the recorder or torch's profiler records the tasks of this step."""

    def run(self, lowered: LoweredSchedule, segment: Segment, loss_fn: LossFunction | None) -> None:
        """Run this rank's part of a segment, and wait until its last message is sent."""
        for replica in self.replicas.values():
            replica.begin()
        self.messages.sending.clear()
        self.held.held.clear()
        for sync in self.syncs.values():
            sync.begin()
        resolved = self._resolve(lowered, segment)
        self.recorded = self.recorder.on or profiling()
        with self.streams.forked():
            self._run_all(resolved, segment, loss_fn)
        for sync in self.syncs.values():
            sync.end()
        self.monitor.enter("summary", peer=ALL_PEERS)
        self.messages.drain()

    def _run_all(self, resolved: ResolvedSchedule[AnyReplica], segment: Segment, loss_fn: LossFunction | None) -> None:
        early = self._early_receives(segment)
        for task in resolved.first_tasks:
            self._compute(task, segment, loss_fn, early)
        self.messages.finish_comparison()
        rest = resolved.rest
        early.start(action.transfer for _, action in rest if isinstance(action, Receive) and self._is_remote(action))
        for device, action in rest:
            self._run_action(device, action, segment, loss_fn, early)
        assert not self.held.held, "a gradient was held, and not sent with another"

    def _resolve(self, lowered: LoweredSchedule, segment: Segment) -> ResolvedSchedule[AnyReplica]:
        found = self.resolved.get(id(lowered))
        if found is None or found.lowered is not lowered:
            acknowledged = find_acknowledged_sends(lowered, self.placement.rank_of, self.world.rank)
            own: list[tuple[int, ResolvedTask[AnyReplica] | Action]] = []
            for device, action in self.own_actions(lowered):
                if not isinstance(action, Compute):
                    own.append((device, action))
                elif rows := self._rows(action.task, device, segment):
                    place = segment.locate(rows)
                    own.append((device, self._resolve_task(action.task, device, place, acknowledged)))
            first = [each for _, each in takewhile(lambda pair: isinstance(pair[1], ResolvedTask), own)]
            tasks = cast("list[ResolvedTask[AnyReplica]]", first)
            found = self.resolved[id(lowered)] = ResolvedSchedule(lowered, tasks, own[len(first) :])
            while len(self.resolved) > _KEPT:
                del self.resolved[next(iter(self.resolved))]
        return found

    def _resolve_task(
        self, task: StageTask, device: int, place: tuple[int, SampleRange], acknowledged: AcknowledgedSends
    ) -> ResolvedTask[AnyReplica]:
        mini_batch, rows = place
        return ResolvedTask(
            device=device,
            task=task,
            doing=CurrentWork("optimizer" if task.kind == "U" else task.kind, task.stage, task.micro_batch),
            phase={"F": "forward", "U": "optimizer"}.get(task.kind, "backward"),
            replica=self.replicas[task.stage, device],
            mini_batch=mini_batch,
            rows=rows,
            stream=self.streams.stage(task.stage, device),
            taken=acknowledged.get((device, task), ()),
        )

    def own_actions(self, lowered: LoweredSchedule) -> Iterable[tuple[int, Action]]:
        """Return the actions of this rank's devices, in the total order of the schedule."""
        return ((device, act) for device, act in lowered.order if self.placement.rank_of[device] == self.world.rank)

    def of_stage(self, stage: int) -> list[AnyReplica]:
        """Return the replicas of a stage on this rank, in replica order."""
        return sorted(
            (replica for (number, _), replica in self.replicas.items() if number == stage),
            key=lambda replica: replica.slot.replica,
        )

    def leaders(self) -> list[AnyReplica]:
        """Return the first replica of every stage on this rank. The optimizer updates it, and the others copy it."""
        stages = sorted({stage for stage, _ in self.replicas})
        return [self.of_stage(stage)[0] for stage in stages]

    def _run_action(
        self,
        device: int,
        action: ResolvedTask[AnyReplica] | Action,
        segment: Segment,
        loss_fn: LossFunction | None,
        early: EarlyReceives,
    ) -> None:
        match action:
            case ResolvedTask():
                self._compute(action, segment, loss_fn, early)
            case Send(transfer):
                self._send(transfer, segment)
            case Receive(transfer):
                early.reach(transfer)
            case Reduce(stage):
                self.monitor.enter("reduce", stage, peer=ALL_PEERS)
                self._join_streams([stage])
                with self.recorder.span(device, "reduce", stage):
                    self.reduce(stage)
            case ReduceTied(number):
                first = next(stage for stage, at in self.replicas if at == device)
                self.monitor.enter("reduce", first, peer=ALL_PEERS)
                self._join_streams(self.placement.plan.tied_gradients[number].stages)
                with self.recorder.span(device, "reduce", first):
                    self.tied_parameters[number].sum_gradients(self.world)
            case Evict(stage, at) | Fetch(stage, at):
                kind = "evict" if isinstance(action, Evict) else "fetch"
                with self.recorder.span(device, kind, stage, at):
                    self.replicas[stage, device].move(kind, at)
            case Hold() | Return():
                with self.streams.host(device).out.entered():
                    self.messages.rest(action, self.placement.rank_of[action.source_device])
            case Compute():
                raise AssertionError("tasks were resolved")

    def _compute(
        self, turn: ResolvedTask[AnyReplica], segment: Segment, loss_fn: LossFunction | None, early: EarlyReceives
    ) -> None:
        if isinstance(turn.stream, HostStream):  # entering its context would only cost time
            self._run_task(turn, segment, loss_fn, early)
            return
        if turn.task.kind == "U":
            entered = self.streams.updating(turn.task.stage, turn.device, self._weights(turn.task.stage))
        else:
            entered = turn.stream.entered()
        with entered:
            self._run_task(turn, segment, loss_fn, early)

    def _weights(self, stage: int) -> dict[int, list[Tensor]]:
        # By device: the weights and gradients of the replicas of a stage.
        return {
            device: [each for p in replica.parameters for each in (p.data, p.grad) if each is not None]
            for (number, device), replica in self.replicas.items()
            if number == stage
        }

    def _run_task(
        self, turn: ResolvedTask[AnyReplica], segment: Segment, loss_fn: LossFunction | None, early: EarlyReceives
    ) -> None:
        task, replica, recorder = turn.task, turn.replica, self.recorder
        batch = segment.mini_batches[turn.mini_batch]
        if len(segment.mini_batches) > 1:
            self.monitor.begin_step(batch.step)
        if replica.received.by_task:
            self._wait_for_values(turn, early)
        if turn.taken:
            self.messages.release(turn.taken)
        self.monitor.enter(turn.phase, task.stage, task.micro_batch)
        if self.recorded:
            with recorder.span_of(turn.doing, turn.device):
                replica.do(task, turn.rows, batch, loss_fn)
            return
        recorder.doing = turn.doing
        replica.do(task, turn.rows, batch, loss_fn)
        recorder.doing = None

    def _wait_for_values(self, turn: ResolvedTask[AnyReplica], early: EarlyReceives) -> None:
        task, received = turn.task, turn.replica.received
        for message in received.waiting(task):
            peer = self.placement.devices(message.peer)[0]
            self.monitor.enter("receive", task.stage, task.micro_batch, message.peer)
            with self.recorder.span(turn.device, "receive", task.stage, task.micro_batch, peer, message.rows.nbytes):
                message.wait()
            hand_on(message, turn.stream)
            early.used(message.rows.nbytes)
        for message in received.copied(task):
            if message.readers:  # The task that it came for has not run.
                message.wait()
                hand_on(message, turn.stream)
        received.enter(task, turn.stream)

    def _send(self, transfer: Transfer, segment: Segment) -> None:
        source = self.replicas[transfer.source_task.stage, transfer.source_device]
        assert source.outgoing_task == transfer.source_task, "a transfer must directly follow the task that made it"
        stream = self.streams.edge(transfer.edge, transfer.direction)
        stream.wait(self.streams.stage(transfer.source_task.stage, transfer.source_device).mark())
        with stream.entered():
            self._copy_or_send(transfer, source.outgoing[transfer.edge], segment, stream)

    def _copy_or_send(self, transfer: Transfer, outgoing: NamedTensors, segment: Segment, stream: Stream) -> None:
        window = transfer.samples.rows_of(self._rows(transfer.source_task, transfer.source_device, segment))
        peer = self.placement.rank_of[transfer.target_device]
        here = peer == self.world.rank
        buffers = self._buffers(transfer, segment) if here else {}
        copied = here and transfer.direction == "forward"
        sent = all_values(transfer, segment.specs) if copied else sent_values(transfer, segment.specs)
        if transfer.without and transfer.direction == "backward":
            self.held.hold(transfer, {name: each[window] for name, each in outgoing.items()}, segment.specs, stream)
        for spec in sent:
            rows = outgoing[spec.name][window]
            stream.hold([rows])
            if self.held.held and transfer.direction == "backward":
                rows = self.held.add_to(transfer, spec.name, rows, stream)
            if not here:
                self.monitor.enter("send", transfer.source_task.stage, transfer.source_task.micro_batch)
                rows = self.monitor.corrupt("send", rows)
            check_message(rows, spec, len(transfer.samples))
            if here:
                buffers[spec.name].copy_(rows)
            else:
                self.messages.send(rows, peer, transfer)
        if here:
            received = self.replicas[transfer.target_task.stage, transfer.target_device].received
            received.note(transfer.target_task, stream.mark())

    def _early_receives(self, segment: Segment) -> EarlyReceives:
        return EarlyReceives(
            begin=lambda transfer: self._receive(transfer, segment),
            size_of=lambda transfer: size_of(transfer, segment.specs),
            room=None if self.world.in_order else EARLY_BYTES,
        )

    def _is_remote(self, action: Receive) -> bool:
        return self.placement.rank_of[action.transfer.source_device] != self.world.rank

    def _receive(self, transfer: Transfer, segment: Segment) -> int:
        peer = self.placement.rank_of[transfer.source_device]
        target = self.replicas[transfer.target_task.stage, transfer.target_device]
        with self.streams.edge(transfer.edge, transfer.direction).entered():
            buffers = self._buffers(transfer, segment)
            joint = transfer.direction == "forward" and bool(self.placement.plan.joint_edges.outputs)
            sent = {spec.name for spec in sent_values(transfer, segment.specs)}
            for name, rows in buffers.items():
                if name not in sent:
                    self._copy_left_out(transfer, name, rows, segment)
                    continue
                message = self.messages.receive(rows, peer)
                target.received.expect(transfer.target_task, message)
                if joint:
                    target.received.lend(transfer.target_task, (transfer.edge, name, transfer.samples.start), message)
        return sum(rows.nbytes for name, rows in buffers.items() if name in sent)

    def _copy_left_out(self, transfer: Transfer, name: str, rows: Tensor, segment: Segment) -> None:
        stage_of = [edge.target for edge in self.placement.plan.edges]
        device = transfer.target_device
        copy_left_out(
            transfer, name, rows, segment.specs, stage_of, lambda stage: self.replicas[stage, device].received
        )

    def _buffers(self, transfer: Transfer, segment: Segment) -> dict[str, Tensor]:
        # The rows of the target's buffers that this transfer fills, in the order of its values.
        target = self.replicas[transfer.target_task.stage, transfer.target_device]
        all_rows = self._rows(transfer.target_task, transfer.target_device, segment)
        forward = transfer.direction == "forward"
        values = all_values(transfer, segment.specs) if forward else sent_values(transfer, segment.specs)
        # Replicas on the target's device send the gradients of joint values, others add them to those on other edges.
        zero = not forward and transfer.edge in self.placement.plan.joint_edges.gradients
        buffers = target.received.buffers(transfer.target_task, transfer.edge, values, len(all_rows), zero=zero)
        return {name: buffer[transfer.samples.rows_of(all_rows)] for name, buffer in buffers.items()}

    def _join_streams(self, stages: Iterable[int]) -> None:
        # The gradients are computed on the streams of these stages.
        wanted = {*stages}
        self.streams.join({self.streams.stage(*slot) for slot in self.replicas if slot[0] in wanted})

    def _rows(self, task: StageTask, device: int, segment: Segment) -> SampleRange:
        if task.kind == "U":
            each = segment.mini_batches[0].size
            return SampleRange(task.micro_batch * each, (task.micro_batch + 1) * each)
        devices = self.placement.plan.stages[task.stage].devices
        size, replica = segment.micro_batches[task.stage], devices.index(device)
        return sample_range(segment.size, size, len(devices), task.micro_batch, replica)

    def reduce(self, stage: int) -> None:
        """Sum the gradients of a stage over its replicas, except those of parameters tied to other stages."""
        self.syncs[stage].reduce()
