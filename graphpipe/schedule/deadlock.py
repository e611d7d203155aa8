"""Finds deadlocks on a transport that blocks: every message and every sum waits until all its devices take part.

Devices that share a replica do each of its tasks together, because they sum values inside it.

NCCL guarantees no more than that. It has no tags, its kernels wait on the GPU for their peers, and a kernel may wait
for those queued before it, also for those of another communicator. So a device works through one queue, in the order
of its actions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from graphpipe.plans import Plan
from graphpipe.schedule.actions import (
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
    Transfer,
)
from graphpipe.schedule.schedule import StageTask

Rendezvous = tuple[str, object]
"""What several devices must reach before any of them continues: a transfer or a reduction."""
NOTHING: frozenset[int] = frozenset()


def find_deadlock(
    plan: Plan, lowered: LoweredSchedule, inside: Collection[int] = NOTHING, *, messages_wait: bool = True
) -> Mapping[int, Action]:
    """Return the devices that wait forever, with the action in which each waits. Empty if there is no deadlock.

    Args:
        plan: which devices take part in which sum.
        lowered: the actions of each device, in order.
        inside: stages that sum their gradients during each replica's last backward, not after it.
        messages_wait: False if messages do not block: then only tasks wait for what they receive, and sums wait for
            all their devices.
    """
    queues = _Queues(plan, lowered, inside, messages_wait)
    while queues.ready:
        queues.advance(queues.ready.pop())
    return {device: listed[queues.at[device]] for device, listed in enumerate(lowered.devices) if queues.left(device)}


@dataclass(slots=True)
class _Queues:
    plan: Plan
    lowered: LoweredSchedule
    inside: Collection[int]
    messages_wait: bool
    at: list[int] = field(init=False)
    """The position of each device in its list of actions."""
    ready: list[int] = field(init=False)
    """Devices that may be able to continue."""
    arrived: dict[Rendezvous, set[int]] = field(default_factory=dict[Rendezvous, set[int]])
    """The devices that wait in each rendezvous."""
    lasts: Mapping[tuple[int, int], StageTask] = field(init=False)
    due: Counter[tuple[int, StageTask]] = field(default_factory=Counter[tuple[int, StageTask]])
    """Number of messages that are not sent yet, by the device and task that wait for them."""

    def __post_init__(self) -> None:
        self.at = [0] * len(self.lowered.devices)
        self.ready = [*range(len(self.lowered.devices))]
        self.lasts = self.lowered.last_backwards() if self.inside else {}
        if not self.messages_wait:
            sent = (action.transfer for _, action in self.lowered.order if isinstance(action, Send))
            self.due.update((transfer.target_device, transfer.target_task) for transfer in sent)

    def left(self, device: int) -> bool:
        return self.at[device] < len(self.lowered.devices[device])

    def advance(self, device: int) -> None:
        """Advance a device until it must wait for another one."""
        while self.left(device):
            action = self.lowered.devices[device][self.at[device]]
            if isinstance(action, Compute) and self.due[device, action.task]:
                return
            if isinstance(action, Send) and not self.messages_wait:
                self.due[action.transfer.target_device, action.transfer.target_task] -= 1
                self.ready.append(action.transfer.target_device)
            rendezvous, members = self._rendezvous(device, action)
            present = self.arrived.setdefault(rendezvous, set())
            present.add(device)
            if present != members:
                return
            del self.arrived[rendezvous]
            for other in members:
                self.at[other] += 1
            self.ready += members - {device}

    def _rendezvous(self, device: int, action: Action) -> tuple[Rendezvous, set[int]]:
        match action:
            case Compute(task):
                if task.stage in self.inside and task == self.lasts[task.stage, device]:
                    return ("sum", task.stage), {*self.plan.stages[task.stage].devices}
                return self._step(device, task)
            case Send(transfer) | Receive(transfer):
                ends = _ends(transfer, device)
                return (("message", transfer), ends) if self.messages_wait else (("local", device), {device})
            case Reduce(stage):
                if stage in self.inside:
                    return ("local", device), {device}
                return ("sum", stage), {*self.plan.stages[stage].devices}
            case ReduceTied(number):
                return ("tied", number), {*self.plan.tied_gradients[number].devices}
            case Offload(stage, at) | Fetch(stage, at):
                neighbour = self.plan.stages[stage].neighbour(device)
                return self._copy(isinstance(action, Offload), (stage, at, device), device, neighbour)
            case ReceiveOffloaded(stage, at, source) | SendOffloaded(stage, at, source):
                return self._copy(isinstance(action, ReceiveOffloaded), (stage, at, source), device, source)

    def _step(self, device: int, task: StageTask) -> tuple[Rendezvous, set[int]]:
        # Devices that share a replica sum values inside its forwards and backwards, so they do these together.
        stage = self.plan.stages[task.stage]
        if stage.tensor == 1:
            return ("local", device), {device}
        replica = stage.replica_of(device)
        return ("step", (task, replica)), {*stage.replicas[replica]}

    def _copy(
        self, offloads: bool, what: tuple[int, int, int], device: int, other: int | None
    ) -> tuple[Rendezvous, set[int]]:
        if other is None or not self.messages_wait:
            return ("local", device), {device}
        return ("offload" if offloads else "fetch", what), {device, other}


def _ends(transfer: Transfer, device: int) -> set[int]:
    # A transfer within a device is listed twice there, and waits for no other device.
    ends = {transfer.source_device, transfer.target_device}
    assert device in ends, f"device {device} neither sends nor receives {transfer}"
    return ends
