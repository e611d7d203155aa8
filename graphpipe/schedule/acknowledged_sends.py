"""Which sent messages have arrived, derived from later messages of the receiver, because gloo cannot be asked.

    stage 0   F0 ----> F1 ----> B0 ----> F2 ---->        Stage 0 sends F2 after B0, which waited for the gradient of 0.
    stage 1      F0 B0 ------> F1 B1 ----------> F2      Stage 1 has F2: it can free the gradient that it sent.

A peer sends after a task only when everything that the task waits for has arrived. In an evaluation nothing comes back.
There a task waits until the messages have arrived that are listed in `LoweredSchedule.awaited`.
"""

from collections.abc import Mapping, Sequence

from graphpipe.schedule.actions import Compute, LoweredSchedule, Send, Transfer
from graphpipe.schedule.schedule import StageTask

AcknowledgedSends = Mapping[tuple[int, StageTask], Sequence[Transfer]]
"""Messages of a rank that have arrived elsewhere when a task of its devices can begin, or that the task waits for in an
evaluation, by device and task."""


def find_acknowledged_sends(lowered: LoweredSchedule, rank_of: Mapping[int, int], rank: int) -> AcknowledgedSends:
    """Return which tasks of a rank prove that its earlier messages have arrived, or wait for that.

    For some messages no task proves it before the step ends. They are left out.

    Args:
        lowered: the actions of all devices.
        rank_of: the rank of each device.
        rank: the sender.
    """
    on_the_way: dict[tuple[int, StageTask], list[Transfer]] = {}  # by the device and task that wait for it
    taken: dict[int, list[Transfer]] = {}  # by device: arrived since it last sent something to this rank
    known: dict[tuple[int, StageTask], list[Transfer]] = {
        (device, task): [transfer for transfer in transfers if rank_of[transfer.target_device] != rank]
        for (device, task), transfers in lowered.awaited.items()
        if rank_of[device] == rank
    }
    for device, action in lowered.order:
        match action:
            case Compute(task):
                taken.setdefault(device, []).extend(on_the_way.pop((device, task), []))
            case Send(transfer):
                taker = transfer.target_device, transfer.target_task
                ours, theirs = (rank_of[end] == rank for end in (device, transfer.target_device))
                if ours and not theirs:
                    on_the_way.setdefault(taker, []).append(transfer)
                elif theirs and not ours:
                    known.setdefault(taker, []).extend(taken.pop(device, []))
            case _:
                pass
    return known
