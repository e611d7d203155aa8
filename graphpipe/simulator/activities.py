"""A lowered schedule and the costs of its plan, as activities for the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphpipe.costs import TaskSeconds
from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.schedule import Compute, Fetch, LoweredSchedule, Offload, Reduce, ReduceTied, Send, StageTask, Transfer
from graphpipe.simulator.events.engine import Activity
from graphpipe.simulator.events.port_queue import Port, Uses, both_ways
from graphpipe.simulator.simulated_work import HostCopy, MessageHandling, OptimizerStep, SimulatedWork, WeightGather
from graphpipe.simulator.step_loads import StepLoads


@dataclass(slots=True)
class Activities:
    """Collects activities in the total order of a lowered schedule, and keeps the last user of each resource."""

    plan: Plan
    loads: StepLoads | None = None
    """Loads of the samples of the mini-batch; None: every sample has the expected loads."""
    all: list[Activity] = field(default_factory=list[Activity])
    what: list[SimulatedWork] = field(default_factory=list[SimulatedWork])
    """The meaning of each activity in `all`."""
    _seconds: dict[tuple[int, int, int], TaskSeconds] = field(default_factory=dict[tuple[int, int, int], TaskSeconds])
    """Seconds of tasks, by stage, device and micro-batch (0 for all, if they are alike)."""
    _last: dict[int, int] = field(default_factory=dict[int, int])
    """The last activity that occupied each device."""
    _last_task: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The last task of each stage on each device."""
    _channels: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The last transfer from one device to another."""
    _uses: dict[tuple[int, int], Uses] = field(default_factory=dict[tuple[int, int], Uses])
    """The ports of messages from one device to another."""
    _exchanged: set[int] = field(default_factory=set[int])
    """The transfers that go at the same time as another one in the opposite direction."""
    _reduced: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The reductions that involve each device."""
    _received: dict[tuple[int, StageTask], list[int]] = field(default_factory=dict[tuple[int, StageTask], list[int]])
    """The transfers that a task on a device waits for."""
    _arrived_seconds: dict[tuple[int, StageTask], float] = field(default_factory=dict[tuple[int, StageTask], float])
    """The seconds of work that these transfers cost the device."""
    _awaited: Mapping[tuple[int, StageTask], Sequence[Transfer]] = field(
        default_factory=dict[tuple[int, StageTask], Sequence[Transfer]]
    )
    """The transfers of a device that must have arrived before a task of it, without training."""
    _sent: dict[Transfer, int] = field(default_factory=dict[Transfer, int])
    """The transfers that tasks may wait for in this way."""
    _outputs: dict[tuple[int, int, SampleRange], int] = field(default_factory=dict[tuple[int, int, SampleRange], int])
    """The transfers of outputs, by edge, target device and samples, if the plan has joint edges."""
    _ready: dict[tuple[int, StageTask], list[list[int]]] = field(
        default_factory=dict[tuple[int, StageTask], list[list[int]]]
    )
    """What some of the devices that share a replica wait for before a task, until all of them have come to it."""
    _lanes: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """The last copy between each device and its node in each direction."""
    _offloaded: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """The copies out of a device, in order, by device and stage."""
    _moves: dict[int, list[Offload | Fetch]] = field(default_factory=dict[int, list[Offload | Fetch]])
    """Copies of a device that follow a task which waits for others of its replica, in order."""
    _fetched: dict[tuple[int, StageTask], int] = field(default_factory=dict[tuple[int, StageTask], int])
    """The copy that a backward waits for."""

    def add_all(self, lowered: LoweredSchedule) -> None:
        """Add the gathers of sharded weights, every action of the total order, then the optimizer steps.

        In a segment, the optimizer steps are tasks of the total order.
        """
        if self.plan.trains:
            self._compare_inputs(lowered)
        self._awaited = lowered.awaited
        for stage in range(len(self.plan.stages)):
            self._gather(stage)
        for device, action in lowered.order:
            if isinstance(action, Compute) and action.task.kind == "U":
                self._update_stage(device, action.task)
            elif isinstance(action, Compute):
                self._compute(device, action.task)
            elif isinstance(action, Send):
                self._transfer(action.transfer)
            elif isinstance(action, Reduce) and device == self.plan.stages[action.stage].devices[0]:
                self._reduce(action)
            elif (
                isinstance(action, ReduceTied) and device == self.plan.tied_gradients[action.tied_gradients].devices[0]
            ):
                self._reduce_tied(action)
            elif isinstance(action, Offload | Fetch):
                self._move(device, action)
        if self.plan.trains:
            self._sum_scalars()
        updates = any(isinstance(action, Compute) and action.task.kind == "U" for _, action in lowered.order)
        if self.plan.trains and not updates:
            for device in self.plan.used_devices:
                self._update(device)

    def _compare_inputs(self, lowered: LoweredSchedule) -> None:
        # Ranks that exchange messages first compare their inputs. This takes time only if devices handle messages.
        if not self.plan.cluster.messages_take_devices:
            return
        peers: dict[int, set[int]] = {device: set() for device in self.plan.used_devices}
        for _, action in lowered.order:
            if isinstance(action, Send):
                peers[action.transfer.source_device].add(action.transfer.target_device)
                peers[action.transfer.target_device].add(action.transfer.source_device)
        for device, others in peers.items():
            self._handle(device, 2 * sum(self.plan.cost_model.message_seconds(0, device, peer) for peer in others), [])

    def _gather(self, stage: int) -> None:
        if seconds := self.plan.gather_seconds(stage):
            devices = self.plan.stages[stage].devices
            if work := self.plan.gather_work_seconds(stage):
                for device in devices:
                    self._handle(device, work, self._last_of(device))
            number = self._add(WeightGather(stage), seconds, self._last_of(*devices))
            for device in devices:
                self._last[device] = number

    def _sum_scalars(self) -> None:
        # Before weights change, the first rank receives scalars from all others, and sends them the sum.
        if not self.plan.cluster.messages_take_devices:
            return
        root, *_ = self.plan.stages[0].devices
        others = [device for device in self.plan.used_devices if device != root]
        handling = [2 * self.plan.cost_model.message_seconds(0, root, device) for device in others]
        given = [self._handle(other, work, self._ended(other)) for other, work in zip(others, handling, strict=True)]
        summed = self._handle(root, sum(handling), given + self._ended(root))
        for device in others:
            self._last[device] = summed

    def _ended(self, device: int) -> list[int]:
        return self._reduced.get(device, []) + self._last_of(device)

    def _add(
        self,
        what: SimulatedWork,
        seconds: float,
        needs: list[int],
        pool: str | None = None,
        uses: Uses = (),
        delay: float = 0.0,
    ) -> int:
        self.all.append(Activity(seconds, tuple(needs), pool, uses, delay))
        self.what.append(what)
        return len(self.all) - 1

    def _add_message(self, what: SimulatedWork, seconds: float, needs: list[int], source: int, target: int) -> int:
        """Add a message that the devices at its ends do not wait for. Of one to another, one goes at a time."""
        link = self.plan.cluster.link(source, target)
        assert link is not None, "a message goes from one device to another"
        if (source, target) in self._channels:
            needs = [*needs, self._channels[source, target]]
        if (uses := self._uses.get((source, target))) is None:
            level = self.plan.cluster.port(source, target)
            uses = ((Port(source, level, True), 1), (Port(target, level, False), 1)) if level else ()
            self._uses[source, target] = uses
        delay = link.latency_seconds if seconds else 0.0
        self._channels[source, target] = number = self._add(what, seconds, needs, uses=uses, delay=delay)
        return number

    def _last_of(self, *devices: int) -> list[int]:
        return [self._last[device] for device in devices if device in self._last]

    def _compute(self, device: int, task: StageTask) -> None:
        needs = self._received.pop((device, task), []) + self._last_of(device)
        if task.kind == "F":  # Only the micro-batch before this one may still be on its way out.
            needs += self._offloaded.get((device, task.stage), [])[-MOVING_MICRO_BATCHES:][:-1]
        elif (fetched := self._fetched.pop((device, task), None)) is not None:
            needs.append(fetched)
        if self._awaited:
            waited = self._awaited.get((device, task), ())
            needs += [self._sent[transfer] for transfer in waited if transfer in self._sent]
        if arrived := self._arrived_seconds.pop((device, task), 0.0):
            needs = [self._handle(device, arrived, needs)]
        if self.plan.stages[task.stage].tensor == 1:
            self._add_task(device, task, needs, (device,))
        else:
            self._compute_together(device, task, needs)

    def _compute_together(self, device: int, task: StageTask, needs: list[int]) -> None:
        # Devices that share a replica sum values inside its tasks: none begins before the last one can.
        stage = self.plan.stages[task.stage]
        replica, self._moves[device] = stage.replica_of(device), []
        team, ready = stage.replicas[replica], self._ready.setdefault((replica, task), [])
        ready.append(needs)
        if len(ready) == len(team):
            together = [need for some in self._ready.pop((replica, task)) for need in some]
            for member in team:
                self._add_task(member, task, together, team)
                for action in self._moves.pop(member):
                    self._move(member, action)

    def _add_task(self, device: int, task: StageTask, needs: list[int], team: tuple[int, ...]) -> None:
        tasks = (self._task_seconds(task.stage, member, task.micro_batch) for member in team)
        seconds = max(each.of(task.kind, self.plan.costs.task_overhead_seconds) for each in tasks)
        number = self._add((device, task), seconds, needs, self.plan.cluster.devices[device].node)
        self._last[device] = self._last_task[device, task.stage] = number

    def _move(self, device: int, action: Offload | Fetch) -> None:
        if device in self._moves:  # its task begins with those of the devices that share the replica
            self._moves[device].append(action)
        else:
            self._offload(device, action) if isinstance(action, Offload) else self._fetch(device, action)

    def _offload(self, device: int, action: Offload) -> None:
        copies = self._offloaded.setdefault((device, action.stage), [])
        copies.append(self._copy(device, "evict", action, [self._last_task[device, action.stage]]))

    def _fetch(self, device: int, action: Fetch) -> None:
        # A stage's copies in are after all its copies out, so that one micro-batch comes or goes at a time.
        needs = self._last_of(device) + self._offloaded[device, action.stage][-1:]
        backward = StageTask("B", action.stage, action.micro_batch)
        self._fetched[device, backward] = self._copy(device, "fetch", action, needs)

    def _copy(self, device: int, kind: Literal["evict", "fetch"], action: Offload | Fetch, needs: list[int]) -> int:
        stage = self.plan.stages[action.stage]
        rows = self._rows(action.stage, device, action.micro_batch)
        count = stage_memory(self.plan.cost_model, stage).offloaded * len(rows)
        what = HostCopy(device, kind, action.stage, action.micro_batch, count, stage.neighbour(device))
        if what.neighbour is not None:
            return self._copy_over_link(what, what.neighbour, needs)
        waits = self.plan.cluster.copies_take_devices
        lane = [self._lanes[device, kind]] if (device, kind) in self._lanes else []
        needs = needs + (self._last_of(device) if waits else lane)
        pool = self.plan.cluster.devices[device].node if waits else None
        seconds = self.plan.cost_model.copy_seconds(count, device)
        number = self._lanes[device, kind] = self._add(what, seconds, needs, pool)
        self._last |= {device: number} if waits else {}
        return number

    def _copy_over_link(self, what: HostCopy, neighbour: int, needs: list[int]) -> int:
        source, target = (what.device, neighbour)[:: 1 if what.kind == "evict" else -1]
        seconds = self.plan.cost_model.transfer_seconds(what.bytes, source, target)
        if handling := self.plan.cost_model.message_seconds(what.bytes, source, target):
            needs = [*needs, self._handle(source, handling, self._last_of(source))]
            self._handle(target, handling, self._last_of(target))
        if not self.plan.cluster.overlap:
            self._last[source] = self._last[target] = self._add(what, seconds, needs + self._last_of(source, target))
            return self._last[source]
        # The neighbour sends when its own tasks have come so far.
        needs = needs + (self._last_of(source) if what.kind == "fetch" else [])
        return self._add_message(what, seconds, needs, source, target)

    def _handle(self, device: int, seconds: float, needs: list[int]) -> int:
        self._last[device] = self._add(MessageHandling(device), seconds, needs, self.plan.cluster.devices[device].node)
        return self._last[device]

    def _task_seconds(self, stage: int, device: int, micro_batch: int) -> TaskSeconds:
        alike = self.loads is None and not self.plan.batch_size % self.plan.stages[stage].micro_batch
        key = stage, device, 0 if alike else micro_batch
        if key not in self._seconds:
            rows = self._rows(*key)
            loads = None if self.loads is None else self.loads.within(rows)
            self._seconds[key] = self.plan.task_seconds(stage, device, loads, len(rows))
        return self._seconds[key]

    def _rows(self, stage: int, device: int, micro_batch: int) -> SampleRange:
        it, index = self.plan.stages[stage], micro_batch % self.plan.micro_batches(stage)  # in its mini-batch
        return sample_range(self.plan.batch_size, it.micro_batch, it.degree, index, it.replica_of(device))

    def _transfer(self, transfer: Transfer) -> None:
        source, target = transfer.source_device, transfer.target_device
        if source == target:
            return  # Passed inside the device, where the order of tasks is enough.
        count = transfer.bytes(self.plan)
        if transfer.without and transfer.direction == "forward":
            self._await_others(transfer)
        if transfer.without and not count:
            return  # Other transfers carry all of its values.
        seconds = self.plan.cost_model.transfer_seconds(count, source, target)
        if handling := self.plan.cost_model.message_seconds(count, source, target):
            self._handle(source, handling, self._last_of(source))
            arriving = target, transfer.target_task
            self._arrived_seconds[arriving] = self._arrived_seconds.get(arriving, 0.0) + handling
        if self.plan.cluster.overlap:
            # The last activity of the source produced the values, or handles the message.
            number = self._add_message(transfer, seconds, self._last_of(source), source, target)
        else:
            number = self._occupy_both(transfer, seconds)
        self._received.setdefault((target, transfer.target_task), []).append(number)
        if self._awaited:
            self._sent[transfer] = number
        if self.plan.joint_edges.outputs and transfer.direction == "forward":
            self._outputs[transfer.edge, target, transfer.samples] = number

    def _occupy_both(self, transfer: Transfer, seconds: float) -> int:
        """Add a transfer that the devices at both ends wait for. Two transfers against each other start together."""
        source, target = transfer.source_device, transfer.target_device
        needs, last = self._last_of(source, target), self._last.get(source)
        if self.plan.cluster.duplex and last == self._last.get(target) and last is not None:
            other = self.what[last]
            against = isinstance(other, Transfer) and (other.source_device, other.target_device) == (target, source)
            if against and last not in self._exchanged:
                needs = list(self.all[last].needs)
                self._exchanged |= {last, len(self.all)}
                if seconds < self.all[last].seconds:  # The devices are free when the longer one is done.
                    return self._add(transfer, seconds, needs)
        self._last[source] = self._last[target] = number = self._add(transfer, seconds, needs)
        return number

    def _await_others(self, transfer: Transfer) -> None:
        # The target task also waits for the transfers that carry what this one leaves out.
        target = transfer.target_device
        numbers = (self._outputs.get((edge, target, transfer.samples)) for edge in transfer.without)
        awaited = [number for number in numbers if number is not None]
        self._received.setdefault((target, transfer.target_task), []).extend(awaited)

    def _reduce(self, action: Reduce) -> None:
        devices = self.plan.stages[action.stage].devices
        ends = [self._last_task[device, action.stage] for device in devices]
        work = self.plan.reduce_work_seconds(action.stage)
        rings = self.plan.stages[action.stage].peers
        self._sum_gradients(action, self.plan.reduce_seconds(action.stage), work, rings, ends)

    def _reduce_tied(self, action: ReduceTied) -> None:
        tied = self.plan.tied_gradients[action.tied_gradients]
        ends = [self._last_task[device, stage] for stage in tied.stages for device in self.plan.stages[stage].devices]
        work = self.plan.tied_gradients_work_seconds(tied)
        self._sum_gradients(action, self.plan.tied_gradients_seconds(tied), work, tied.rings, ends)

    def _sum_gradients(
        self, what: SimulatedWork, seconds: float, work: float, rings: tuple[tuple[int, ...], ...], ends: list[int]
    ) -> None:
        # After the last tasks that add to the gradients. A device does one reduction after the other.
        devices = tuple(device for ring in rings for device in ring)
        overlap = self.plan.cluster.overlap
        if work:
            ends = [self._handle(device, work, ends + self._last_of(device)) for device in devices]
        needs = ends + [number for device in devices for number in self._reduced.get(device, [])[-1:]]
        needs += [] if overlap else self._last_of(*devices)
        ports = [(ring, self.plan.cluster.ring_port(ring)) for ring in rings] if overlap else []
        uses = tuple(use for ring, level in ports if level for use in both_ways(ring, level))
        number = self._add(what, seconds, needs, uses=uses)
        for device in devices:
            self._reduced.setdefault(device, []).append(number)
            if not overlap:
                self._last[device] = number

    def _update_stage(self, device: int, task: StageTask) -> None:
        seconds, node = self.plan.optimizer_seconds(task.stage), self.plan.cluster.devices[device].node
        self._last[device] = self._add((device, task), seconds, self._ended(device), node)

    def _update(self, device: int) -> None:
        hosted = [number for number, stage in enumerate(self.plan.stages) if device in stage.devices]
        seconds = sum(map(self.plan.optimizer_seconds, hosted))
        self._add(OptimizerStep(device), seconds, self._ended(device), self.plan.cluster.devices[device].node)
