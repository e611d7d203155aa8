"""The order of work: schedules of tasks, their verifiers, their lowering to messages, and one file per scheduler."""

from graphpipe.schedule.lowered import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceShared, Send, Transfer
from graphpipe.schedule.schedule import Schedule, StageTask

__all__ = [
    "Action",
    "Compute",
    "LoweredSchedule",
    "Receive",
    "Reduce",
    "ReduceShared",
    "Schedule",
    "Send",
    "StageTask",
    "Transfer",
]
