"""The worker: does the actions of one rank's devices in the order of the lowered schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, Protocol, TypeVar, cast

from torch import Tensor, nn

from graphpipe.model.stage_program import ValueSpec
from graphpipe.model.torch_private import profiling
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.run.comm.messages import Channels
from graphpipe.run.comm.rank_placement import Placement, Seat
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import Lanes
from graphpipe.run.device.stream import Immediate, Lane
from graphpipe.run.faults.rank_status import EVERYBODY
from graphpipe.run.faults.status_reporter import Watch
from graphpipe.run.stage.edge_values import check_message
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import Batch
from graphpipe.run.stage.receive_buffers import Inbox, Values
from graphpipe.run.step.recorder import Doing, Recorder
from graphpipe.run.step.resolved_schedule import Learnt, Turn
from graphpipe.run.weights.replica_sync import Engine
from graphpipe.run.weights.tied_parameters import SharedParameters
from graphpipe.schedule import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceShared, Send, Task, Transfer
from graphpipe.schedule.acknowledged_sends import Taken, taken_by
from graphpipe.schedule.early_receives import AHEAD_BYTES, Ahead


class Replica(Protocol):
    """What a worker asks of a replica of a stage: it computes, or pretends to."""

    inbox: Inbox
    """Where what it receives is put."""
    outgoing: dict[int, Values]
    """What its last task has to send, by edge."""
    outgoing_task: Task | None
    """Its last task."""

    @property
    def seat(self) -> Seat:
        """Which replica of which stage it is."""
        ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Those whose gradients are reduced; in the same order in every replica of a stage."""
        ...

    def begin(self) -> None:
        """Forget the last step."""
        ...

    def do(self, task: Task, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> None:
        """Do a task of these samples."""
        ...


AnyReplica = TypeVar("AnyReplica", bound=Replica)


@dataclass(slots=True, kw_only=True)
class Worker(Generic[AnyReplica]):
    """One rank: the stage replicas it hosts and its connections to the others.

    A transfer between two devices of this rank is a copy; the sending side makes it, and the receiving side has
    nothing left to do. Everything else is the same for one rank and for many.
    """

    placement: Placement
    world: World
    replicas: dict[tuple[int, int], AnyReplica]
    """By stage and device."""
    engines: Mapping[int, Engine]
    """By stage that this rank hosts."""
    channels: Channels
    lanes: Lanes
    recorder: Recorder
    watch: Watch
    shared: Sequence[SharedParameters] = ()
    """By position in `Plan.exchanges`."""
    learnt: Learnt[AnyReplica] | None = None
    """Of the schedule that was run last."""
    recorded: bool = True
    """Whether anybody looks at the tasks of this step: the recorder, or torch's profiler."""

    def run(self, lowered: LoweredSchedule, batch: Batch, loss_fn: LossFunction | None) -> None:
        """Do this rank's part of one mini-batch, and wait until the last message is gone."""
        for replica in self.replicas.values():
            replica.begin()
        self.channels.sending.clear()
        for engine in self.engines.values():
            engine.begin()
        learnt = self._learn(lowered, batch)
        self.recorded = self.recorder.on or profiling()
        with self.lanes.forked():
            self._do_all(learnt, batch, loss_fn)
        for engine in self.engines.values():
            engine.end()
        self.watch.at("tally", peer=EVERYBODY)
        self.channels.drain()

    def _do_all(self, learnt: Learnt[AnyReplica], batch: Batch, loss_fn: LossFunction | None) -> None:
        ahead = self._ahead(batch)
        for turn in learnt.turns:
            self._compute(turn, batch, loss_fn, ahead)
        self.channels.settle()  # before the first message
        rest = learnt.rest
        ahead.start(action.transfer for _, action in rest if isinstance(action, Receive) and self._from_afar(action))
        for device, action in rest:
            self._do(device, action, batch, loss_fn, ahead)

    def _learn(self, lowered: LoweredSchedule, batch: Batch) -> Learnt[AnyReplica]:
        if self.learnt is None or self.learnt.lowered is not lowered:
            taken = taken_by(lowered, self.placement.rank_of, self.world.rank)
            own: list[tuple[int, Turn[AnyReplica] | Action]] = []
            for device, action in self.own(lowered):
                if not isinstance(action, Compute):
                    own.append((device, action))
                elif rows := self._rows(action.task, device, batch):
                    own.append((device, self._turn(action.task, device, rows, taken)))
            turns = [turn for _, turn in takewhile(lambda each: isinstance(each[1], Turn), own)]
            self.learnt = Learnt(lowered, cast("list[Turn[AnyReplica]]", turns), own[len(turns) :])
        return self.learnt

    def _turn(self, task: Task, device: int, rows: SampleRange, taken: Taken) -> Turn[AnyReplica]:
        return Turn(
            device=device,
            task=task,
            doing=Doing(task.kind, task.stage, task.micro_batch),
            phase="forward" if task.kind == "F" else "backward",
            replica=self.replicas[task.stage, device],
            rows=rows,
            lane=self.lanes.stage(task.stage, device),
            taken=taken.get((device, task), ()),
        )

    def own(self, lowered: LoweredSchedule) -> Iterable[tuple[int, Action]]:
        """Return the actions of this rank's devices, merged as the total order has them."""
        return ((device, act) for device, act in lowered.order if self.placement.rank_of[device] == self.world.rank)

    def of_stage(self, stage: int) -> list[AnyReplica]:
        """Return the replicas of a stage on this rank, in replica order."""
        return sorted(
            (replica for (number, _), replica in self.replicas.items() if number == stage),
            key=lambda replica: replica.seat.replica,
        )

    def leaders(self) -> list[AnyReplica]:
        """Return the first replica of every stage on this rank: its optimizer changes these, others copy them."""
        stages = sorted({stage for stage, _ in self.replicas})
        return [self.of_stage(stage)[0] for stage in stages]

    def _do(
        self,
        device: int,
        action: Turn[AnyReplica] | Action,
        batch: Batch,
        loss_fn: LossFunction | None,
        ahead: Ahead,
    ) -> None:
        match action:
            case Turn():
                self._compute(action, batch, loss_fn, ahead)
            case Send(transfer):
                self._send(transfer, batch)
            case Receive(transfer):
                ahead.reach(transfer)
            case Reduce(stage):
                self.watch.at("reduce", stage, peer=EVERYBODY)
                self._join([stage])
                with self.recorder.span(device, "reduce", stage):
                    self.reduce(stage)
            case ReduceShared(number):
                first = next(stage for stage, at in self.replicas if at == device)
                self.watch.at("reduce", first, peer=EVERYBODY)
                self._join(self.placement.plan.exchanges[number].stages)
                with self.recorder.span(device, "reduce", first):
                    self.shared[number].sum_gradients(self.world)
            case Compute():
                raise AssertionError("tasks have been made turns")

    def _compute(self, turn: Turn[AnyReplica], batch: Batch, loss_fn: LossFunction | None, ahead: Ahead) -> None:
        if isinstance(turn.lane, Immediate):  # which saves time between the tasks of a CPU
            self._do_turn(turn, batch, loss_fn, ahead)
            return
        with turn.lane.entered():
            self._do_turn(turn, batch, loss_fn, ahead)

    def _do_turn(self, turn: Turn[AnyReplica], batch: Batch, loss_fn: LossFunction | None, ahead: Ahead) -> None:
        task, replica, recorder = turn.task, turn.replica, self.recorder
        if replica.inbox.parcels:
            self._take_in(turn, ahead)
        if turn.taken:
            self.channels.let_go(turn.taken)
        self.watch.at(turn.phase, task.stage, task.micro_batch)
        if self.recorded:
            with recorder.span_of(turn.doing, turn.device):
                replica.do(task, turn.rows, batch, loss_fn)
            return
        recorder.doing = turn.doing
        replica.do(task, turn.rows, batch, loss_fn)
        recorder.doing = None

    def _take_in(self, turn: Turn[AnyReplica], ahead: Ahead) -> None:
        task, inbox = turn.task, turn.replica.inbox
        for message in inbox.waiting(task):
            peer = self.placement.devices(message.peer)[0]
            self.watch.at("receive", task.stage, task.micro_batch, message.peer)
            with self.recorder.span(turn.device, "receive", task.stage, task.micro_batch, peer, message.rows.nbytes):
                message.wait()
            ahead.used(message.rows.nbytes)
        inbox.enter(task, turn.lane)

    def _send(self, transfer: Transfer, batch: Batch) -> None:
        source = self.replicas[transfer.source_task.stage, transfer.source_device]
        assert source.outgoing_task == transfer.source_task, "a transfer does not follow the task that made it"
        lane = self.lanes.edge(transfer.edge, transfer.direction)
        lane.wait(self.lanes.stage(transfer.source_task.stage, transfer.source_device).mark())
        with lane.entered():
            self._move(transfer, source.outgoing[transfer.edge], batch, lane)

    def _move(self, transfer: Transfer, outgoing: Values, batch: Batch, lane: Lane) -> None:
        window = _window(transfer.samples, self._rows(transfer.source_task, transfer.source_device, batch))
        peer = self.placement.rank_of[transfer.target_device]
        here = peer == self.world.rank
        buffers = self._buffers(transfer, batch) if here else {}
        for spec in _values(transfer, batch):
            rows = outgoing[spec.name][window]
            lane.hold([rows])
            if not here:
                self.watch.at("send", transfer.source_task.stage, transfer.source_task.micro_batch)
                rows = self.watch.spoil("send", rows)
            check_message(rows, spec, len(transfer.samples))
            if here:
                buffers[spec.name].copy_(rows)
            else:
                self.channels.send(rows, peer, transfer)
        if here:
            inbox = self.replicas[transfer.target_task.stage, transfer.target_device].inbox
            inbox.note(transfer.target_task, lane.mark())

    def _ahead(self, batch: Batch) -> Ahead:
        return Ahead(
            begin=lambda transfer: self._receive(transfer, batch),
            size_of=lambda transfer: _bytes(transfer, batch),
            room=None if self.world.in_order else AHEAD_BYTES,
        )

    def _from_afar(self, action: Receive) -> bool:
        return self.placement.rank_of[action.transfer.source_device] != self.world.rank

    def _receive(self, transfer: Transfer, batch: Batch) -> int:
        peer = self.placement.rank_of[transfer.source_device]
        target = self.replicas[transfer.target_task.stage, transfer.target_device]
        with self.lanes.edge(transfer.edge, transfer.direction).entered():
            buffers = self._buffers(transfer, batch).values()
            for rows in buffers:
                target.inbox.expect(transfer.target_task, self.channels.receive(rows, peer))
        return sum(rows.nbytes for rows in buffers)

    def _buffers(self, transfer: Transfer, batch: Batch) -> dict[str, Tensor]:
        # The rows of the target's buffers that this transfer fills, in the order of its values.
        target = self.replicas[transfer.target_task.stage, transfer.target_device]
        all_rows = self._rows(transfer.target_task, transfer.target_device, batch)
        buffers: Values = target.inbox.buffers(
            transfer.target_task, transfer.edge, _values(transfer, batch), len(all_rows)
        )
        return {name: buffer[_window(transfer.samples, all_rows)] for name, buffer in buffers.items()}

    def _join(self, stages: Iterable[int]) -> None:
        # What is summed comes from the lanes of these stages.
        wanted = {*stages}
        self.lanes.join({self.lanes.stage(*seat) for seat in self.replicas if seat[0] in wanted})

    def _rows(self, task: Task, device: int, batch: Batch) -> SampleRange:
        devices = self.placement.plan.stages[task.stage].devices
        size, replica = batch.micro_batches[task.stage], devices.index(device)
        return sample_range(batch.size, size, len(devices), task.micro_batch, replica)

    def reduce(self, stage: int) -> None:
        """Sum the gradients of a stage over its replicas, but for what it shares with other stages."""
        self.engines[stage].reduce()


def _values(transfer: Transfer, batch: Batch) -> Sequence[ValueSpec]:
    specs = batch.specs[transfer.edge]
    return [spec for spec in specs if spec.requires_grad] if transfer.direction == "backward" else specs


def _bytes(transfer: Transfer, batch: Batch) -> int:
    return sum(spec.bytes_per_sample for spec in _values(transfer, batch)) * len(transfer.samples)


def _window(samples: SampleRange, within: SampleRange) -> slice:
    return slice(samples.start - within.start, samples.stop - within.start)
