"""Which messages have been taken, known from what comes back: there is no asking (gloo does not tell).

    stage 0   F0 ----> F1 ----> B0 ----> F2 ---->        F2 is sent after B0, which had waited for the gradient of 0:
    stage 1      F0 B0 ------> F1 B1 ----------> F2      once it is here, that gradient need not be kept any more

What a peer sends after a task has been sent after all that the task waited for had come.
"""

from collections.abc import Mapping, Sequence

from graphpipe.schedule.lowered import Compute, LoweredSchedule, Send, Transfer
from graphpipe.schedule.schedule import Task

Taken = Mapping[tuple[int, Task], Sequence[Transfer]]
"""By device and task of a rank: what this rank had sent, and others have taken by the time the task can begin."""


def taken_by(lowered: LoweredSchedule, rank_of: Mapping[int, int], rank: int) -> Taken:
    """Return when a rank learns that what it has sent was taken; of some of it, it never does.

    Args:
        lowered: what all devices do.
        rank_of: the rank of each device.
        rank: that sends.
    """
    on_the_way: dict[tuple[int, Task], list[Transfer]] = {}  # by device and task that wait for it
    taken: dict[int, list[Transfer]] = {}  # by device, since it last sent something to this rank
    known: dict[tuple[int, Task], list[Transfer]] = {}
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
