"""In what order: tasks, schedules, their verifier and lowering, and one file per scheduler."""

from graphpipe.schedule.lower import lower
from graphpipe.schedule.lowered import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceShared, Send, Transfer
from graphpipe.schedule.schedule import Schedule, Task
from graphpipe.schedule.schedulers.registry import SCHEDULERS, schedule

__all__ = [
    "SCHEDULERS",
    "Action",
    "Compute",
    "LoweredSchedule",
    "Receive",
    "Reduce",
    "ReduceShared",
    "Schedule",
    "Send",
    "Task",
    "Transfer",
    "lower",
    "schedule",
]
