"""The order of work: schedules of tasks, their verifiers, their lowering to messages, and one file per scheduler."""

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
from graphpipe.schedule.schedule import Schedule, StageTask

__all__ = [
    "Action",
    "Compute",
    "Fetch",
    "LoweredSchedule",
    "Offload",
    "Receive",
    "ReceiveOffloaded",
    "Reduce",
    "ReduceTied",
    "Schedule",
    "Send",
    "SendOffloaded",
    "StageTask",
    "Transfer",
]
