"""The verifier refuses every kind of invalid schedule, and its message names the device and the task."""

import pytest
from builders import Part, make_plan

from graphpipe.errors import InvalidInput
from graphpipe.schedule import Schedule
from graphpipe.schedule.verify import verify

PLAN = make_plan([Part(), Part()], batch_size=2)
SOUND = ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"]


def check(*lines: str) -> None:
    text = "\n".join(["schedule hand", *(f"{number}: {line}" for number, line in enumerate(lines))])
    verify(PLAN, Schedule.parse(text))


def test_a_valid_schedule_passes():
    check(*SOUND)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (SOUND[:1], "lists 1 devices, the plan's cluster has 2"),
        (["F0.0 F0.1 B0.0", SOUND[1]], r"device 'd0': does not list B0.1 \(1 tasks are missing\)"),
        (["F0.0 F0.0 F0.1 B0.0 B0.1", SOUND[1]], "device 'd0': lists F0.0 2 times"),
        (["F0.0 F0.1 F1.0 B0.0 B0.1", SOUND[1]], "device 'd0': lists F1.0, which is not a task of a stage"),
        (["F0.0 F0.1 F0.2 B0.0 B0.1", SOUND[1]], "device 'd0': lists F0.2, which is not a task"),
        (["F0.0 F0.1 I0.0 B0.0 B0.1", SOUND[1]], "device 'd0': lists I0.0 beside B0.0"),
        (["F0.1 F0.0 B0.0 B0.1", SOUND[1]], "device 'd0': F0.1 comes before F0.0"),
        (["F0.0 F0.1 B0.1 B0.0", SOUND[1]], "device 'd0': B0.1 comes before B0.0"),
        ([SOUND[0], "B1.0 F1.0 F1.1 B1.1"], "device 'd1': B1.0 comes before F1.0"),
        ([SOUND[0], "F1.0 F1.1 B1.0 B1.1"], "device 'd1': with F1.1, 2 samples are in flight .* allows 1"),
    ],
)
def test_an_invalid_schedule_is_refused(lines: list[str], message: str):
    with pytest.raises(InvalidInput, match=message):
        check(*lines)


def test_a_deadlock_error_lists_the_blocked_tasks():
    # The consumer needs two samples at once, but the producer schedules a backward after the first one.
    plan = make_plan([Part(), Part(micro_batch=2)], batch_size=2)
    text = "schedule hand\n0: F0.0 B0.0 F0.1 B0.1\n1: F1.0 B1.0\n"
    with pytest.raises(InvalidInput, match=r"wait for each other forever: d0 at B0.0, d1 at F1.0"):
        verify(plan, Schedule.parse(text))


def test_every_replica_is_checked_even_after_a_valid_one():
    plan = make_plan([Part(micro_batch=2, degree=2)], batch_size=4)
    sound = "F0.0 B0.0 F0.1 B0.1"
    verify(plan, Schedule.parse(f"schedule hand\n0: {sound}\n1: {sound}\n"))
    with pytest.raises(InvalidInput, match=r"does not list B0.1 \(1 tasks are missing\)"):
        verify(plan, Schedule.parse(f"schedule hand\n0: {sound}\n1: F0.0 B0.0 F0.1\n"))
