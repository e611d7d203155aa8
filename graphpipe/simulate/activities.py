"""A lowered schedule and the costs of its plan, as activities for the engine."""

from dataclasses import dataclass, field

from graphpipe.costs import CostTable, TaskSeconds
from graphpipe.plan import Plan
from graphpipe.schedule import Compute, LoweredSchedule, Reduce, ReduceShared, Send, Task, Transfer
from graphpipe.schedule.schedule import Kind
from graphpipe.simulate.engine import Activity


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer step of a device."""

    device: int


Doing = tuple[int, Task] | Transfer | Reduce | ReduceShared | Update
"""What an activity is: a task on a device, a transfer, a reduction over replicas, an optimizer step."""


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

    def add_all(self, lowered: LoweredSchedule) -> None:
        """Add every action of the total order, then the optimizer steps."""
        for device, action in lowered.order:
            if isinstance(action, Compute):
                self._compute(device, action.task)
            elif isinstance(action, Send):
                self._transfer(action.transfer)
            elif isinstance(action, Reduce) and device == self.plan.stages[action.stage].devices[0]:
                self._reduce(action)
            elif isinstance(action, ReduceShared) and device == self.plan.exchanges[action.exchange].devices[0]:
                self._reduce_shared(action)
        for device in self.plan.used_devices:
            self._update(device)

    def _add(self, what: Doing, seconds: float, needs: list[int], pool: str | None = None) -> int:
        self.found.append(Activity(seconds, tuple(needs), pool))
        self.what.append(what)
        return len(self.found) - 1

    def _last_of(self, *devices: int) -> list[int]:
        return [self._last[device] for device in devices if device in self._last]

    def _compute(self, device: int, task: Task) -> None:
        needs = self._received.pop((device, task), []) + self._last_of(device)
        seconds = seconds_of(task.kind, self._task_seconds(task.stage, device), self.plan.costs)
        number = self._add((device, task), seconds, needs, self.plan.cluster.devices[device].node)
        self._last[device] = self._last_task[device, task.stage] = number

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
        if self.plan.cluster.overlap:
            # The last activity of the source is the task that produced it.
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
        needs = self._reduced.get(device, []) + self._last_of(device)
        self._add(Update(device), seconds, needs, self.plan.cluster.devices[device].node)
