"""The verifier refuses every kind of invalid schedule, and its message names the device and the task."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import Part, make_plan, share

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
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


HALVES = "F1.0 I1.0 W1.0 F1.1 I1.1 W1.1"


def with_last_stage(**changes: object) -> Plan:
    last = replace(PLAN.stages[1], **changes)  # pyright: ignore[reportArgumentType]
    return replace(PLAN, stages=(PLAN.stages[0], last))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backward": "whole"}, "lists I1.0, but the plan requires whole backwards of stage 's1'"),
        ({"recompute": "full"}, "lists I1.0, but stage 's1' recomputes: its backwards are whole"),
        ({"recompute": ("s1",)}, "lists I1.0, but stage 's1' recomputes: its backwards are whole"),
        ({"offload": ("s1",)}, "lists I1.0, but stage 's1' offloads: its backwards are whole"),
    ],
)
def test_a_backward_in_halves_is_refused_where_it_must_be_whole(changes: dict[str, object], message: str) -> None:
    lines = Schedule.parse(f"schedule hand\n0: {SOUND[0]}\n1: {HALVES}\n")
    verify(PLAN, lines)
    with pytest.raises(InvalidInput, match=f"device 'd1': {message}"):
        verify(with_last_stage(**changes), lines)
    verify(with_last_stage(**changes), Schedule.parse("\n".join(["schedule hand", f"0: {SOUND[0]}", f"1: {SOUND[1]}"])))


@pytest.mark.parametrize(
    ("kept", "line", "message"),
    [
        # Between the halves, a sample counts as half of one: 2 - 1 + 1/2.
        (0.5, "F1.0 I1.0 F1.1 W1.0 I1.1 W1.1", "with F1.1, 1.5 samples are in flight at stage 's1', which allows 1"),
        (0.5, "F1.0 F1.1 I1.0 W1.0 I1.1 W1.1", "with F1.1, 2 samples are in flight at stage 's1', which allows 1"),
        (0.0, "F1.0 I1.0 F1.1 I1.1 W1.0 W1.1", ""),
        (0.5, "F1.0 I1.0 W1.0 F1.1 W1.1 I1.1", "W1.1 comes before I1.1"),
        (0.5, "F1.0 I1.0 W1.0 I1.1 F1.1 W1.1", "I1.1 comes before F1.1"),
        (0.5, "F1.0 I1.0 W1.0 F1.1 I1.1", r"does not list W1.1 \(1 tasks are missing\)"),
        (0.5, "F1.0 W1.0 F1.1 B1.1", r"does not list I1.0 \(1 tasks are missing\)"),
        (0.5, "F1.0 I1.0 W1.0 F1.1 I1.1 B1.1", "lists I1.1 beside B1.1"),
    ],
)
def test_halves_of_a_backward(kept: float, line: str, message: str) -> None:
    plan = replace(PLAN, costs=replace(PLAN.costs, kept_for_weight_gradient=kept))
    found = Schedule.parse(f"schedule hand\n0: {SOUND[0]}\n1: {line}\n")
    if not message:
        verify(plan, found)
        return
    with pytest.raises(InvalidInput, match=f"device 'd1': {message}"):
        verify(plan, found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("F0.0 B0.0 F0.1 B0.1 U0.0 F0.2 B0.2 F0.3 B0.3 U0.1", ""),
        ("F0.0 I0.0 W0.0 F0.1 I0.1 W0.1 U0.0 F0.2 B0.2 F0.3 B0.3 U0.1", ""),
        ("F0.0 B0.0 F0.1 I0.1 F0.2 I0.2 W0.1 U0.0 W0.2 F0.3 B0.3 U0.1", ""),
        ("F0.0 B0.0 F0.1 B0.1 F0.2 U0.0 B0.2 F0.3 B0.3 U0.1", ""),
        ("F0.0 B0.0 F0.1 U0.0 B0.1 F0.2 B0.2 F0.3 B0.3 U0.1", "U0.0 does not come between the weight gradients"),
        ("F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 U0.0 F0.3 B0.3 U0.1", "B0.2 comes before U0.0"),
        ("F0.0 B0.0 F0.1 B0.1 F0.2 I0.2 W0.2 U0.0 F0.3 B0.3 U0.1", "W0.2 comes before U0.0"),
        ("F0.0 B0.0 F0.1 B0.1 U0.1 F0.2 B0.2 F0.3 B0.3 U0.0", "U0.1 does not come between the weight gradients"),
        ("F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U0.1", r"does not list U0.0 \(1 tasks are missing\)"),
        ("F0.0 B0.0 F0.1 B0.1 U0.0 F0.2 B0.2 U0.1", r"does not list B0.3 \(2 tasks are missing\)"),
    ],
)
def test_every_mini_batch_of_a_segment_ends_with_an_update(line: str, message: str) -> None:
    plan = make_plan([Part(in_flight=2)], batch_size=2)
    found = Schedule.parse(f"schedule hand\n0: {line}\n")
    if not message:
        verify(plan, found)
        return
    with pytest.raises(InvalidInput, match=f"device 'd0': {message}"):
        verify(plan, found)


def test_a_segment_deadlocks_in_its_second_mini_batch() -> None:
    plan = make_plan([Part(in_flight=2), Part(micro_batch=2)], batch_size=2)
    first, last = "F0.0 F0.1 B0.0 B0.1 U0.0", "F1.0 B1.0 U1.0 F1.1 B1.1 U1.1"
    verify(plan, parsed([f"{first} F0.2 F0.3 B0.2 B0.3 U0.1", last]))
    with pytest.raises(InvalidInput, match=r"wait for each other forever: d0 at B0\.2, d1 at F1\.1"):
        verify(plan, parsed([f"{first} F0.2 B0.2 F0.3 B0.3 U0.1", last]))


def test_an_update_waits_for_the_gradients_of_all_who_share_the_parameter() -> None:
    parts = [Part(devices=(0,)), Part(devices=(0,)), Part(devices=(1,))]
    plan = make_plan(parts, [(1, 2, 0.0)], batch_size=1)
    found = Schedule.parse("schedule hand\n0: F0.0 B0.0 U0.0 F1.0 B1.0 U1.0\n1: F2.0 B2.0 U2.0\n")
    verify(plan, found)
    verify(share(plan, [0, 1], 4.0), Schedule.parse(str(found).replace(" U0.0", "").replace("U1.0", "U1.0 U0.0")))
    with pytest.raises(InvalidInput, match=r"wait for each other forever: d0 at U0\.0, d1 at F2\.0"):
        verify(share(plan, [0, 2], 4.0), found)
    # Half of the gradients are there, but not those of the second micro-batch.
    plan = make_plan(parts, [(1, 2, 0.0)], batch_size=2)
    lines = ["F0.0 B0.0 F0.1 B0.1 F1.0 B1.0 U0.0 F1.1 B1.1 U1.0", "F2.0 B2.0 F2.1 B2.1 U2.0"]
    verify(plan, parsed(lines))
    with pytest.raises(InvalidInput, match=r"wait for each other forever: d0 at U0\.0, d1 at F2\.1"):
        verify(share(plan, [0, 2], 4.0), parsed(lines))


def test_a_stage_waits_for_the_replica_that_has_its_samples() -> None:
    # Device 0 has samples 0 2 4, device 1 has 1 3 5, and device 2 computes 0 1 2 and then 3 4 5.
    plan = make_plan([Part(micro_batch=2, degree=2), Part(micro_batch=3, in_flight=6)], batch_size=6)
    even, odd, last = "F0.0 F0.1 B0.0 B0.1 F0.2 B0.2", "F0.0 B0.0 F0.1 F0.2 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1"
    verify(plan, parsed([even, odd, last]))
    with pytest.raises(InvalidInput, match=r"forever: d0 at B0\.0, d1 at B0\.0, d2 at F1\.0\."):
        verify(plan, parsed([odd, odd, last]))
    with pytest.raises(InvalidInput, match=r"forever: d0 at B0\.2, d1 at B0\.1, d2 at F1\.1\."):
        verify(plan, parsed([even, even, last]))


def test_a_stage_waits_for_its_last_sample() -> None:
    # The samples 3 4 5 of the second micro-batch are of the first and the second of stage 0, 0 1 2 3 and 4 5 6 7.
    plan = make_plan([Part(micro_batch=4), Part(micro_batch=3, in_flight=12)], batch_size=12, schedule="gpipe")
    last = " ".join(f"{kind}1.{at}" for at in range(4) for kind in "FB")
    verify(plan, parsed(["F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", last]))
    with pytest.raises(InvalidInput, match=r"forever: d0 at B0\.0, d1 at F1\.1\."):
        verify(plan, parsed(["F0.0 B0.0 F0.1 F0.2 B0.1 B0.2", last]))


def test_a_replica_waits_for_a_micro_batch_long_before_it_is_computed() -> None:
    # The second replica of stage 1 needs micro-batches 2 and 3 of stage 0 when none of them is done.
    parts = [Part(devices=(0,)), Part(micro_batch=4, degree=2, devices=(1, 2)), Part(devices=(2,)), Part(devices=(0,))]
    plan = make_plan(parts, [(0, 1, 0.0), (2, 3, 0.0)], batch_size=4, schedule="gpipe")

    def all_of(kind: str, stage: int) -> str:
        return " ".join(f"{kind}{stage}.{at}" for at in range(4))

    first, last = f"{all_of('F', 0)} {all_of('F', 3)}", f"{all_of('B', 3)} {all_of('B', 0)}"
    others = ["F1.0 B1.0", f"F1.0 {all_of('F', 2)} B1.0 {all_of('B', 2)}"]
    verify(plan, parsed([f"{first} {last}", *others]))
    with pytest.raises(InvalidInput, match=r"forever: d0 at F3\.0, d1 at F1\.0, d2 at F1\.0\."):
        verify(plan, parsed([f"{all_of('F', 3)} {all_of('F', 0)} {last}", *others]))


def test_a_long_schedule_passes() -> None:
    plan = make_plan([Part()], batch_size=200)
    verify(plan, parsed([" ".join(f"F0.{at} B0.{at}" for at in range(200))]))


def test_a_deadlock_error_names_four_devices() -> None:
    plan = make_plan([Part() for _ in range(5)], batch_size=1)
    everyone = parsed([f"F{stage}.0 B{stage}.0" for stage in range(5)])
    verify(plan, everyone)
    crossed = make_plan([Part(), Part(micro_batch=2), *[Part(micro_batch=2)] * 3], batch_size=2)
    lines = ["F0.0 B0.0 F0.1 B0.1", *(f"F{stage}.0 B{stage}.0" for stage in range(1, 5))]
    with pytest.raises(InvalidInput, match=r"forever: d0 at B0.0, d1 at F1.0, d2 at F2.0, d3 at F3.0, \.\.\."):
        verify(crossed, parsed(lines))
    four = make_plan([Part(), *[Part(micro_batch=2)] * 3], batch_size=2)
    with pytest.raises(InvalidInput) as found:
        verify(four, parsed(lines[:4]))
    assert "d3 at F3.0" in str(found.value)
    assert "..." not in str(found.value)


def parsed(lines: Sequence[str]) -> Schedule:
    return Schedule.parse("\n".join(["schedule hand", *(f"{number}: {line}" for number, line in enumerate(lines))]))
