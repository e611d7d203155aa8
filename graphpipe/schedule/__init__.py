"""The order of work: schedules of tasks, their verifiers, their lowering to messages, and one file per scheduler."""

from graphpipe.schedule.actions import (
    Action,
    Compute,
    Evict,
    Fetch,
    Hold,
    LoweredSchedule,
    Receive,
    Reduce,
    ReduceTied,
    Return,
    Send,
    Transfer,
)
from graphpipe.schedule.schedule import Schedule, StageTask

__all__ = [
    "Action",
    "Compute",
    "Evict",
    "Fetch",
    "Hold",
    "LoweredSchedule",
    "Receive",
    "Reduce",
    "ReduceTied",
    "Return",
    "Schedule",
    "Send",
    "StageTask",
    "Transfer",
]
