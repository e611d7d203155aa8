"""A lowered schedule and the costs of its plan, as activities for the engine."""

from dataclasses import dataclass, field

from graphpipe.costs import CostTable, TaskSeconds
from graphpipe.plans import Plan
from graphpipe.schedule import Compute, LoweredSchedule, Reduce, ReduceShared, Send, Task, Transfer
from graphpipe.schedule.schedule import Kind
from graphpipe.simulator.engine import Activity


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer step of a device."""

    device: int


@dataclass(frozen=True, slots=True)
class Handling:
    """A device's own part in sending or receiving messages."""

    device: int


Doing = tuple[int, Task] | Transfer | Handling | Reduce | ReduceShared | Update
"""What an activity is: a task on a device, a transfer, what one takes of a device, a reduction over replicas, an
optimizer step."""


def seconds_of(kind: Kind, seconds: TaskSeconds, costs: CostTable) -> float:
    """Return the seconds of one task; the runtime's own cost is part of each, a weight gradient alone too."""
    match kind:
        case "F":
            return seconds.forward
        case "B":
            return seconds.backward
        case "I":
            return seconds.input_gradient
        case "W":
            return seconds.weight_gradient + costs.task_overhead_seconds


@dataclass(slots=True)
class Activities:
    """Collects activities in the total order of a lowered schedule, remembering who used what last."""

    plan: Plan
    found: list[Activity] = field(default_factory=list[Activity])
    what: list[Doing] = field(default_factory=list[Doing])
    """What each of `found` is."""
    _seconds: dict[tuple[int, int], TaskSeconds] = field(default_factory=dict[tuple[int, int], TaskSeconds])
    _last: dict[int, int] = field(default_factory=dict[int, int])
    """The last activity that occupied each device."""
    _last_task: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The last task of each stage on each device."""
    _channels: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The last transfer from one device to another."""
    _reduced: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The reductions each device takes part in."""
    _received: dict[tuple[int, Task], list[int]] = field(default_factory=dict[tuple[int, Task], list[int]])
    """The transfers that a task on a device waits for."""
    _arrived_seconds: dict[tuple[int, Task], float] = field(default_factory=dict[tuple[int, Task], float])
    """What these take of the device."""

    def add_all(self, lowered: LoweredSchedule) -> None:
        """Add every action of the total order, then the optimizer steps."""
        self._compare(lowered)
        for device, action in lowered.order:
            if isinstance(action, Compute):
                self._compute(device, action.task)
            elif isinstance(action, Send):
                self._transfer(action.transfer)
            elif isinstance(action, Reduce) and device == self.plan.stages[action.stage].devices[0]:
                self._reduce(action)
            elif isinstance(action, ReduceShared) and device == self.plan.exchanges[action.exchange].devices[0]:
                self._reduce_shared(action)
        self._add_up()
        for device in self.plan.used_devices:
            self._update(device)

    def _compare(self, lowered: LoweredSchedule) -> None:
        # Ranks that talk to each other first tell what they were given, which matters where telling takes them time.
        if not self.plan.cluster.messages_take_devices:
            return
        peers: dict[int, set[int]] = {device: set() for device in self.plan.used_devices}
        for _, action in lowered.order:
            if isinstance(action, Send):
                peers[action.transfer.source_device].add(action.transfer.target_device)
                peers[action.transfer.target_device].add(action.transfer.source_device)
        for device, others in peers.items():
            self._handle(device, 2 * sum(self.plan.cost_model.message_seconds(device, each) for each in others), [])

    def _add_up(self) -> None:
        # Before any weight changes, a rank that ends last gets the numbers of all, and tells them their sum.
        if not self.plan.cluster.messages_take_devices:
            return
        root, *_ = self.plan.stages[0].devices
        others = [device for device in self.plan.used_devices if device != root]
        taken = [2 * self.plan.cost_model.message_seconds(root, device) for device in others]
        given = [self._handle(*each, self._ended(each[0])) for each in zip(others, taken, strict=True)]
        summed = self._handle(root, sum(taken), given + self._ended(root))
        for device in others:
            self._last[device] = summed

    def _ended(self, device: int) -> list[int]:
        return self._reduced.get(device, []) + self._last_of(device)

    def _add(self, what: Doing, seconds: float, needs: list[int], pool: str | None = None) -> int:
        self.found.append(Activity(seconds, tuple(needs), pool))
        self.what.append(what)
        return len(self.found) - 1

    def _last_of(self, *devices: int) -> list[int]:
        return [self._last[device] for device in devices if device in self._last]

    def _compute(self, device: int, task: Task) -> None:
        needs = self._received.pop((device, task), []) + self._last_of(device)
        if arrived := self._arrived_seconds.pop((device, task), 0.0):
            needs = [self._handle(device, arrived, needs)]
        seconds = seconds_of(task.kind, self._task_seconds(task.stage, device), self.plan.costs)
        number = self._add((device, task), seconds, needs, self.plan.cluster.devices[device].node)
        self._last[device] = self._last_task[device, task.stage] = number

    def _handle(self, device: int, seconds: float, needs: list[int]) -> int:
        self._last[device] = self._add(Handling(device), seconds, needs, self.plan.cluster.devices[device].node)
        return self._last[device]

    def _task_seconds(self, stage: int, device: int) -> TaskSeconds:
        if (stage, device) not in self._seconds:
            it = self.plan.stages[stage]
            samples = it.micro_batch / it.degree
            seconds = self.plan.cost_model.task_seconds(it.ops, device, samples, it.recompute)
            self._seconds[stage, device] = seconds
        return self._seconds[stage, device]

    def _transfer(self, transfer: Transfer) -> None:
        source, target = transfer.source_device, transfer.target_device
        if source == target:
            return  # A hand-over: the order of the device says all.
        count = self.plan.edges[transfer.edge].bytes_per_sample * len(transfer.samples)
        seconds = self.plan.cost_model.transfer_seconds(count, source, target)
        if taken := self.plan.cost_model.message_seconds(source, target):
            self._handle(source, taken, self._last_of(source))
            arriving = target, transfer.target_task
            self._arrived_seconds[arriving] = self._arrived_seconds.get(arriving, 0.0) + taken
        if self.plan.cluster.overlap:
            # The last activity of the source is the task that produced it, or the handling of what that sends.
            busy = [self._channels[source, target]] if (source, target) in self._channels else []
            number = self._add(transfer, seconds, self._last_of(source) + busy)
            self._channels[source, target] = number
        else:
            number = self._add(transfer, seconds, self._last_of(source, target))
            self._last[source] = self._last[target] = number
        self._received.setdefault((target, transfer.target_task), []).append(number)

    def _reduce(self, action: Reduce) -> None:
        devices = self.plan.stages[action.stage].devices
        ends = [self._last_task[device, action.stage] for device in devices]
        self._sum_gradients(action, self.plan.reduce_seconds(action.stage), devices, ends)

    def _reduce_shared(self, action: ReduceShared) -> None:
        exchange = self.plan.exchanges[action.exchange]
        ends = [
            self._last_task[device, stage] for stage in exchange.stages for device in self.plan.stages[stage].devices
        ]
        self._sum_gradients(action, self.plan.exchange_seconds(exchange), exchange.devices, ends)

    def _sum_gradients(self, what: Doing, seconds: float, devices: tuple[int, ...], ends: list[int]) -> None:
        # After the last tasks that add to the gradients, and one reduction of a device after the other.
        overlap = self.plan.cluster.overlap
        needs = ends + [number for device in devices for number in self._reduced.get(device, [])[-1:]]
        needs += [] if overlap else self._last_of(*devices)
        number = self._add(what, seconds, needs)
        for device in devices:
            self._reduced.setdefault(device, []).append(number)
            if not overlap:
                self._last[device] = number

    def _update(self, device: int) -> None:
        hosted = [stage for stage in self.plan.stages if device in stage.devices]
        seconds = sum(self.plan.cost_model.optimizer_seconds(stage.ops) for stage in hosted)
        self._add(Update(device), seconds, self._ended(device), self.plan.cluster.devices[device].node)
