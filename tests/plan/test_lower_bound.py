"""The lower bound: by hand, and below every plan there is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import best_bottleneck, random_problem, towers

from graphpipe.plan.bounds import least_step_seconds
from graphpipe.plan.hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plan.lower_bound import bottleneck_bound, bottleneck_gap_percent, gap_percent, step_bound
from graphpipe.plan.options import Options
from graphpipe.plan.registry import PLANNERS
from graphpipe.schedule.choice import CHOICES, scheduled
from graphpipe.simulate import predict, step_seconds


def test_by_hand() -> None:
    # 4 layers and a join of no cost, 3 ms per sample and layer: 8 samples are 96 ms of work.
    problem = towers([4], 2, 8, layer=(0.0, 1e-3), join=(0.0, 0.0))
    assert bottleneck_bound(problem) == pytest.approx(48e-3)
    # With 16 devices 6 ms each; four devices per layer synchronise 1 MB over 50 GB/s: 2 (4 - 1) / 4 of 20 us.
    many = towers([4], 16, 8, layer=(0.0, 1e-3), join=(0.0, 0.0))
    assert bottleneck_bound(many) == pytest.approx(6.03e-3)
    # One sample's way to the last layer is 3 ms, there and back; between, its own forward and input gradient: 1 + 1.
    assert step_bound(many) == pytest.approx(8e-3)


@given(seed=st.integers(0, 10**9), micro_batch=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_no_partition_goes_below(seed: int, micro_batch: int) -> None:
    problem = random_problem(seed, most_ops=6)
    assert bottleneck_bound(problem) <= problem.batch_size * best_bottleneck(problem, micro_batch) * (1 + 1e-9)


@given(seed=st.integers(0, 10**9), name=st.sampled_from(sorted(PLANNERS)))
@settings(max_examples=40, deadline=None)
def test_no_planner_goes_below(seed: int, name: str) -> None:
    problem = random_problem(seed, most_ops=8)
    plan = PLANNERS[name](problem, Options())
    assert step_bound(problem) <= step_seconds(plan) * (1 + 1e-9)
    assert gap_percent(plan, predict(plan)) >= -1e-6
    assert bottleneck_gap_percent(plan) >= -1e-6


@given(seed=st.integers(0, 10**9), name=st.sampled_from(sorted(PLANNERS)), choice=st.sampled_from(CHOICES))
@settings(max_examples=60, deadline=None)
def test_no_schedule_of_a_plan_goes_below_its_least(seed: int, name: str, choice: str) -> None:
    plan = PLANNERS[name](random_problem(seed, most_ops=8), Options())
    assert least_step_seconds(plan) <= step_seconds(scheduled(plan, choice, step_seconds)) * (1 + 1e-9)


def test_the_least_of_a_chain_by_hand() -> None:
    # Two stages of 1 ms forwards and 1 + 1 ms back per sample: the second waits 1 ms and works 8 x 3 ms.
    problem = towers([1], 2, 8, layer=(0.0, 1e-3), join=(0.0, 1e-3))
    stages = (
        HandStage(ops=("b0.0",), devices=(0,), micro_batch=1),
        HandStage(ops=("join",), devices=(1,), micro_batch=1),
    )
    assert least_step_seconds(plan_by_hand(problem, HandPlan(stages=stages))) == pytest.approx(25e-3)
