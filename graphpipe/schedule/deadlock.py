"""What if every message and every sum keeps all its devices until the last of them has come, and nothing overtakes?

That is the least a transport can offer, and NCCL promises no more: it has no tags, its kernels wait on the GPU for
their peers, and any of them may wait for those queued before it, whatever communicator they belong to. A device then
has one queue, in the order in which its actions stand.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from graphpipe.plans import Plan
from graphpipe.schedule.lowered import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceShared, Send, Transfer
from graphpipe.schedule.schedule import Task

Meeting = tuple[str, object]
"""What several devices must come to: a transfer or a reduction."""
NOTHING: frozenset[int] = frozenset()


def standstill(
    plan: Plan, lowered: LoweredSchedule, inside: Collection[int] = NOTHING, *, messages_wait: bool = True
) -> Mapping[int, Action]:
    """Return the devices that wait for ever, with what each waits in; empty if all come to their end.

    Args:
        plan: says who takes part in what.
        lowered: what each device does, in order.
        inside: stages whose gradients are summed inside of each replica's last backward, not after it.
        messages_wait: False lets messages go beside all else, so that only tasks wait for what they receive, and sums
            for all their devices.
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
    """The position that each device has come to."""
    ready: list[int] = field(init=False)
    """Devices that may be able to go on."""
    come: dict[Meeting, set[int]] = field(default_factory=dict[Meeting, set[int]])
    """Who waits in each meeting."""
    lasts: Mapping[tuple[int, int], Task] = field(init=False)
    due: Counter[tuple[int, Task]] = field(default_factory=Counter[tuple[int, Task]])
    """Messages that are not sent yet, by the device and task that wait for them."""

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
        """Let a device go on until it must wait for another."""
        while self.left(device):
            action = self.lowered.devices[device][self.at[device]]
            if isinstance(action, Compute) and self.due[device, action.task]:
                return
            if isinstance(action, Send) and not self.messages_wait:
                self.due[action.transfer.target_device, action.transfer.target_task] -= 1
                self.ready.append(action.transfer.target_device)
            meeting, members = self._meeting(device, action)
            present = self.come.setdefault(meeting, set())
            present.add(device)
            if present != members:
                return
            del self.come[meeting]
            for other in members:
                self.at[other] += 1
            self.ready += members - {device}

    def _meeting(self, device: int, action: Action) -> tuple[Meeting, set[int]]:
        match action:
            case Compute(task):
                if task.stage in self.inside and task == self.lasts[task.stage, device]:
                    return ("sum", task.stage), {*self.plan.stages[task.stage].devices}
                return ("alone", device), {device}
            case Send(transfer) | Receive(transfer):
                ends = _ends(transfer, device)
                return (("message", transfer), ends) if self.messages_wait else (("alone", device), {device})
            case Reduce(stage):
                if stage in self.inside:
                    return ("alone", device), {device}
                return ("sum", stage), {*self.plan.stages[stage].devices}
            case ReduceShared(exchange):
                return ("shared", exchange), {*self.plan.exchanges[exchange].devices}


def _ends(transfer: Transfer, device: int) -> set[int]:
    # A hand-over is listed twice on its device, and waits for nobody.
    ends = {transfer.source_device, transfer.target_device}
    assert device in ends, f"device {device} is no end of {transfer}"
    return ends
