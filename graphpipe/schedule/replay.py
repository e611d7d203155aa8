"""A given order of tasks, played on a board."""

from collections.abc import Sequence
from math import inf

from graphpipe.schedule.board import Board
from graphpipe.schedule.schedule import Schedule, Task
from graphpipe.schedule.stage_work import StageWork


def replay(works: Sequence[StageWork], schedule: Schedule) -> Board | None:
    """Return the board of a schedule whose tasks start as soon as they can.

    None if it cannot be played: the tasks wait for each other, or the replicas of a stage do not go in step.
    """
    board, at = Board(works), [0] * len(schedule.devices)
    moved = True
    while moved:
        moved = False
        for device, tasks in enumerate(schedule.devices):
            while at[device] < len(tasks) and _play(board, schedule, at, tasks[at[device]]):
                moved = True
    return board if sum(at) == sum(map(len, schedule.devices)) else None


def _play(board: Board, schedule: Schedule, at: list[int], task: Task) -> bool:
    """Put a task if all devices of its stage have come to it and what it needs is known."""
    stage, devices = task.stage, board.works[task.stage].devices
    if any(schedule.devices[other][at[other] : at[other] + 1] != (task,) for other in devices):
        return False
    free = board.free_at(stage)
    ready = free if task.kind == "W" else board.seats[stage].ready_at("F" if task.kind == "F" else "B")
    if ready == inf:
        return False
    board.put(stage, task.kind, max(ready, free))
    for device in devices:
        at[device] += 1
    return True
