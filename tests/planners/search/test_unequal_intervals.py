"""Plans for unequal devices: faster devices get more work."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_problem, towers

from graphpipe.costs import CostModel, Curve
from graphpipe.errors import Infeasible
from graphpipe.planners.graphpipe import plan_graphpipe
from graphpipe.planners.improve.exchange_devices import exchanged
from graphpipe.planners.problem.assign_devices import place
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import stage_seconds
from graphpipe.planners.search.search import search
from graphpipe.planners.search.unequal_intervals import Intervals
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds

OPTIONS = Options(evaluate=step_seconds)


def unequal(problem: Problem, fast: int, *, times: float = 2.0, memory_bytes: float | None = None) -> Problem:
    """Return the problem with its last `fast` devices `times` times faster than the others, on a separate node."""
    (slow,) = problem.cluster.device_types
    kind = replace(slow, name="fast", memory_bytes=memory_bytes or slow.memory_bytes)
    devices = problem.cluster.devices
    quick = tuple(replace(device, type="fast", node="fast") for device in devices[len(devices) - fast :])
    cluster = replace(problem.cluster, device_types=(slow, kind), devices=(*devices[: len(devices) - fast], *quick))

    def faster(curve: Curve) -> Curve:
        return Curve(lines=tuple((fixed / times, slope / times) for fixed, slope in curve.lines))

    rows = tuple(
        replace(
            row,
            device_type="fast",
            forward=faster(row.forward),
            input_gradient=faster(row.input_gradient),
            weight_gradient=faster(row.weight_gradient),
        )
        for row in problem.costs.rows
    )
    return replace(problem, costs=replace(problem.costs, rows=(*problem.costs.rows, *rows)), cluster=cluster)


def as_slow(problem: Problem, options: Options) -> Plan:
    """Return the plan of the search that treats every device as the slowest one."""
    found: list[Plan] = []
    for chain in (False, True):
        found.append(search(problem, options, planner="graphpipe", chains=(chain,)))
    return options.best(found)


@pytest.mark.parametrize("branches", [[24], [12, 12], [8, 8, 8]])
@pytest.mark.parametrize("whole_batch", [False, True])
def test_two_fast_devices_do_more_of_the_work(branches: list[int], whole_batch: bool) -> None:
    equal = towers(branches, 4, 64, layer=(0.0, 1e-3), join=(0.0, 0.0), whole_batch=whole_batch)
    problem = unequal(equal, 2)
    plan = plan_graphpipe(problem, OPTIONS)
    verify(plan)
    assert step_seconds(as_slow(equal, OPTIONS)) >= 1.2 * step_seconds(plan)
    assert step_seconds(as_slow(problem, OPTIONS)) >= 1.2 * step_seconds(plan)
    # The work, 24 layers x 3 ms x 64 samples, on the equivalent of six slow devices, with little waiting.
    assert step_seconds(plan) <= 1.2 * 24 * 3e-3 * 64 / 6
    mixed = plan_graphpipe(problem, replace(OPTIONS, mixed_micro_batches=True))
    verify(mixed)
    assert step_seconds(mixed) <= step_seconds(plan)
    layers = [sum(len(stage.ops) / stage.degree for stage in plan.stages if d in stage.devices) for d in range(4)]
    assert max(layers[:2]) < min(layers[2:])


@given(seed=st.integers(0, 10**9), fast=st.integers(1, 3), times=st.sampled_from([1.5, 3.0]))
@settings(max_examples=15, deadline=None)
def test_it_is_never_worse_than_treating_all_devices_as_slow(seed: int, fast: int, times: float) -> None:
    problem = random_problem(seed)
    problem = unequal(problem, min(fast, len(problem.cluster.devices)), times=times)
    plan = plan_graphpipe(problem, OPTIONS)
    verify(plan)
    assert step_seconds(plan) <= step_seconds(as_slow(problem, OPTIONS)) * (1 + 1e-9)


def best_intervals(problem: Problem, order: tuple[str, ...], micro_batch: int) -> float:
    """Return the least bottleneck seconds over all cuts of the order and all teams of devices, by enumeration."""
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    types = sorted({device.type for device in problem.cluster.devices})
    counts = [sum(device.type == kind for device in problem.cluster.devices) for kind in types]
    at = costs.positions(order)
    seconds = {
        (kind, degree): stage_seconds(problem, costs, micro_batch, degree, (types[kind],))[at]
        for kind in range(len(types))
        for degree in (1, 2, 4)
        if degree <= counts[kind] and micro_batch % degree == 0
    }

    def least(start: int, left: tuple[int, ...]) -> float:
        if start == len(order):
            return 0.0
        return min(
            (
                max(
                    float(each[start:end].sum()),
                    least(end, tuple(n - degree * (k == kind) for k, n in enumerate(left))),
                )
                for (kind, degree), each in seconds.items()
                if degree <= left[kind]
                for end in range(start + 1, len(order) + 1)
            ),
            default=float("inf"),
        )

    return least(0, tuple(counts))


@given(seed=st.integers(0, 10**9), fast=st.integers(0, 3), micro_batch=st.sampled_from([1, 4]))
@settings(max_examples=20, deadline=None)
def test_the_slowest_interval_is_the_least_of_all(seed: int, fast: int, micro_batch: int) -> None:
    problem = random_problem(seed, most_ops=6)
    problem = unequal(problem, min(fast, len(problem.cluster.devices)))
    costs, graph = CostModel(problem.graph, problem.costs, problem.cluster), problem.graph
    found = Intervals.of(problem, costs, graph, graph.order, micro_batch, 1, micro_batch).best(float("inf"))
    assert [name for each in found for name in each.part.ops] == list(graph.order)
    slowest = max(
        float(
            stage_seconds(problem, costs, micro_batch, each.part.degree, (each.type,))[
                costs.positions(each.part.ops)
            ].sum()
        )
        for each in found
    )
    assert slowest == pytest.approx(best_intervals(problem, graph.order, micro_batch), rel=1e-4)


def test_a_model_that_only_fits_large_devices_is_planned() -> None:
    # Of 9 layers of 1 MB (4 MB with gradients and state) a small device holds one, a large one four.
    equal = towers([9], 4, 8, saved_bytes=1.0, memory_bytes=5.1e6)
    with pytest.raises(Infeasible):
        plan_graphpipe(equal, OPTIONS)
    plan = plan_graphpipe(unequal(equal, 2, memory_bytes=17e6), OPTIONS)
    verify(plan)
    assert memory_shortfall(plan) <= 0


def test_samples_in_flight_are_counted_against_each_types_memory() -> None:
    # Seven samples in flight of four layers fill a small device.
    equal = towers([16], 4, 64, saved_bytes=1e6, parameter_bytes=0.0, memory_bytes=28e6)
    plan = plan_graphpipe(unequal(equal, 2, memory_bytes=64e6), OPTIONS)
    verify(plan)
    assert step_seconds(plan) < step_seconds(as_slow(equal, OPTIONS)) / 1.2


def test_a_stage_gets_devices_of_its_type_on_one_node() -> None:
    mixed = unequal(towers([4], 8, 8), 4).cluster  # gpu 0-3, fast 4-7
    assert place(mixed, [2, 1, 2, 2], [(0, 1, 1.0)], ["fast", "gpu", "gpu", "fast"]) == [(4, 5), (0,), (1, 2), (6, 7)]


def test_the_heavier_stage_gets_the_faster_device() -> None:
    problem = unequal(towers([2], 2, 8, layer=(0.0, 1e-3), join=(0.0, 0.0)), 1)
    stages = (
        HandStage(ops=("b0.0", "b0.1"), devices=(0,), micro_batch=1),
        HandStage(ops=("join",), devices=(1,), micro_batch=1),
    )
    plan = plan_by_hand(problem, HandPlan(stages=stages))
    assert step_seconds(plan) == pytest.approx(8 * 6e-3)
    better = exchanged(plan, OPTIONS)
    verify(better)
    assert [stage.devices for stage in better.stages] == [(1,), (0,)]
    assert step_seconds(better) == pytest.approx(8 * 3e-3)
    assert exchanged(better, OPTIONS) == better


def test_equal_devices_are_planned_as_before() -> None:
    problem = towers([4, 4], 4, 16)
    assert plan_graphpipe(problem, OPTIONS) == as_slow(problem, OPTIONS)
