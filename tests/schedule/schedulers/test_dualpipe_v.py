"""DualPipeV: its bubble, its memory, and what it cannot order."""

from dataclasses import replace
from random import Random

import pytest
from builders import Part, make_plan

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers.registry import build_schedule, find_scheduler
from graphpipe.simulator import step_seconds
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph


def folded(
    devices: int, micro_batches: int, forward: float = 0.5, backward: float = 1.0, in_flight: int | None = None
) -> Plan:
    """Return a chain in a V: a sample takes a device one second forward and two backward."""
    parts = [
        Part(
            devices=(min(stage, 2 * devices - 1 - stage),),
            forward=forward,
            backward=backward,
            in_flight=in_flight or micro_batches,
        )
        for stage in range(2 * devices)
    ]
    return replace(make_plan(parts, batch_size=micro_batches), schedule="dualpipe-v")


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (2, 5), (3, 7), (4, 8), (4, 16), (8, 16)])
def test_the_bubble_is_one_forward_for_each_further_device(devices: int, micro_batches: int) -> None:
    plan = folded(devices, micro_batches)
    assert step_seconds(plan) == pytest.approx(3 * micro_batches + 0.5 * (devices - 1))
    assert step_seconds(replace(plan, schedule="zb-auto")) <= step_seconds(plan) + 1e-9
    others = [step_seconds(replace(plan, schedule=name)) for name in ("interleaved", "zb-h1")]
    assert min(others) > step_seconds(plan)


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 8), (4, 16), (8, 20)])
def test_a_device_keeps_the_published_number_of_micro_batches(devices: int, micro_batches: int) -> None:
    for tasks in build_schedule(folded(devices, micro_batches)).devices:
        held = [0]
        for task in tasks:
            held.append(held[-1] + {"F": 1, "I": 0}.get(task.kind, -1))
        assert max(held) <= 2 * devices + 1


def test_the_order_of_the_first_device_is_the_published_one() -> None:
    first = " ".join(map(str, build_schedule(folded(2, 5)).devices[0]))
    assert first == (
        "F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 F0.3 B3.1 F3.2 B0.0 F0.4 B3.2 F3.3 B0.1 B3.3 F3.4 B0.2 B3.4 B0.3 B0.4"
    )


def test_no_order_of_unequal_stages_waits_forever() -> None:
    random = Random(0)
    for devices in range(1, 6):
        plan = folded(devices, 2 * devices + random.randint(0, 5), random.uniform(0.1, 2), random.uniform(0.1, 4))
        assert step_seconds(plan) < float("inf")


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (folded(4, 7), "7 micro-batches for 4 devices"),
        (folded(2, 8, in_flight=2), "keeps 2 samples in flight, needs"),
        (make_plan([Part(devices=(at % 2,)) for at in range(4)], batch_size=8), "two stages each in a V"),
        (make_plan([Part(devices=(at,)) for at in range(4)], batch_size=8), "two stages each in a V"),
    ],
)
def test_what_cannot_be_ordered_is_refused(plan: Plan, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        build_schedule(replace(plan, schedule="dualpipe-v"))


def test_the_samples_in_flight_follow_from_the_order() -> None:
    needed = find_scheduler("dualpipe-v").in_flight
    assert needed is not None
    assert needed(folded(2, 8, in_flight=1)) == (4, 3, 2, 1)


@pytest.mark.parametrize("model", ["gpt-small", "mmt-small"])
def test_the_planner_looks_for_plans_in_a_v(model: str) -> None:
    found = find_zoo_graph(model)
    assert found is not None
    cluster = gp.Cluster.preset("summit:1x4")
    costs = gp.estimate(found.graph, cluster)
    plan = gp.plan(found.graph, costs, cluster, batch_size=32, schedule="dualpipe-v")
    assert plan.schedule == "dualpipe-v"
    assert [stage.devices for stage in plan.stages] == [stage.devices for stage in reversed(plan.stages)]
    with pytest.raises(InvalidInput, match="stages_per_device: is 1, but under 'dualpipe-v'"):
        gp.plan(found.graph, costs, cluster, batch_size=32, schedule="dualpipe-v", stages_per_device=1)
