"""Interleaved 1F1B: Megatron-LM's bubble and memory on chains, and sound orders on graphs."""

from dataclasses import replace
from random import Random

import pytest
from builders import Part, make_plan

from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import step_seconds


def round_robin(devices: int, each: int, batch_size: int, *, in_flight: int | None = None) -> Plan:
    """Return a chain of `each` stages per device; a sample takes a device one second forward and two backward."""
    parts = [
        Part(devices=(stage % devices,), forward=1 / each, backward=2 / each, in_flight=in_flight or batch_size)
        for stage in range(devices * each)
    ]
    return replace(make_plan(parts, batch_size=batch_size), schedule="interleaved")


def most_in_flight(schedule: Schedule) -> list[int]:
    """Return, by device, the most micro-batches in flight at its stages together."""
    found: list[int] = []
    for tasks in schedule.devices:
        held = [0]
        for task in tasks:
            held.append(held[-1] + (1 if task.kind == "F" else -1))
        found.append(max(held))
    return found


@pytest.mark.parametrize(
    ("devices", "each", "batch_size"),
    [(2, 2, 8), (3, 2, 12), (4, 2, 16), (4, 3, 8), (4, 4, 16), (8, 2, 16), (4, 2, 32)],
)
def test_bubble_and_memory_are_those_of_megatron(devices: int, each: int, batch_size: int) -> None:
    """Narayanan et al., section 2.2.2: the bubble is (p - 1) / (m v), and the warm-up 2 (p - d - 1) + (v - 1) p."""
    plan = round_robin(devices, each, batch_size)
    bubble = (devices - 1) / (batch_size * each)
    assert step_seconds(plan) == pytest.approx(3 * batch_size * (1 + bubble))
    warm_ups = [2 * (devices - device - 1) + (each - 1) * devices for device in range(devices)]
    assert most_in_flight(build_schedule(plan)) == [warm_up + 1 for warm_up in warm_ups]


def test_the_order_of_the_first_device_is_megatrons() -> None:
    first = " ".join(map(str, build_schedule(round_robin(4, 2, 8)).devices[0]))
    assert first.startswith(
        "F0.0 F0.1 F0.2 F0.3 F4.0 F4.1 F4.2 F4.3 F0.4 F0.5 F0.6 B4.0 F0.7 B4.1 F4.4 B4.2 F4.5 B4.3 F4.6 B0.0"
    )


def test_mini_batches_need_not_be_a_multiple_of_the_devices() -> None:
    """Megatron requires it. Here a round of five is as long."""
    assert step_seconds(round_robin(4, 2, 5)) == pytest.approx(15 + 4.5)


def test_the_merged_1f1b_order_is_longer() -> None:
    plan = round_robin(4, 2, 16)
    lean = make_plan([Part(devices=(s % 4,), forward=0.5, backward=1.0) for s in range(8)], batch_size=16)
    assert (step_seconds(lean), step_seconds(plan)) == (56.0, 52.5)
    assert (max(most_in_flight(build_schedule(lean))), max(most_in_flight(build_schedule(plan)))) == (12, 11)


def test_without_room_for_its_warm_up_it_is_1f1b() -> None:
    parts = [Part(devices=(stage % 4,)) for stage in range(8)]  # The samples in flight that 1F1B needs.
    plan = make_plan(parts, batch_size=16)
    assert build_schedule(replace(plan, schedule="interleaved")).devices == build_schedule(plan).devices


def test_with_one_stage_on_each_device_it_is_1f1b() -> None:
    plan = make_plan([Part(), Part(), Part()], [(0, 2, 0.0), (1, 2, 0.0)], batch_size=8)
    roomy = replace(plan, stages=tuple(replace(stage, in_flight=8) for stage in plan.stages))
    assert build_schedule(replace(roomy, schedule="interleaved")).devices == build_schedule(plan).devices


def test_zb_auto_is_never_longer() -> None:
    plan = round_robin(4, 2, 16)
    assert step_seconds(replace(plan, schedule="zb-auto")) <= 52.5


def random_graph(seed: int) -> tuple[list[Part], list[tuple[int, int, float]]]:
    """Return stages of unequal times on fewer devices, and an edge to each from one of the three stages before it."""
    draw = Random(seed)
    count = draw.randint(3, 9)
    devices = draw.randint(2, count - 1)
    edges = {(draw.randrange(max(0, target - 3), target), target) for target in range(1, count)}
    edges |= {(stage, count - 1) for stage in range(count - 1) if not any(source == stage for source, _ in edges)}
    parts: list[Part] = []
    for stage in range(count):
        forward, device = draw.choice([0.5, 1.0, 2.0]), stage if stage < devices else draw.randrange(devices)
        parts.append(Part(devices=(device,), forward=forward, backward=2 * forward))
    return parts, [(*ends, 0.0) for ends in sorted(edges)]


@pytest.mark.parametrize("seed", range(20))
def test_on_any_graph_it_is_sound_and_not_longer_than_1f1b(seed: int) -> None:
    parts, edges = random_graph(seed)
    lean = make_plan(parts, edges, batch_size=8)
    roomy = make_plan([replace(part, in_flight=8) for part in parts], edges, batch_size=8)
    plan = replace(roomy, schedule="interleaved")
    build_schedule(plan)  # It is verified.
    assert step_seconds(plan) <= step_seconds(lean) * (1 + 1e-9)
