"""DAPPLE: the latency of a step, compared with every sequential pipeline."""

import pytest
from baseline_oracles import Pipeline, all_reduce, best, busy_problem, compute, cuts, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import towers

from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.verify import verify


def latency(problem: Problem, micro_batch: int, pipeline: Pipeline) -> float:
    blocks = [compute(problem, micro_batch, ops, degree) * micro_batch for ops, degree, _ in pipeline]
    transfers = [
        cut * micro_batch / degree for cut, (_, degree, _) in zip(cuts(problem, pipeline), pipeline, strict=False)
    ]
    exposed = max(
        all_reduce(problem, ops, degree) - stage * max(blocks) for stage, (ops, degree, _) in enumerate(pipeline)
    )
    steady = (problem.batch_size // micro_batch - 1) * max(blocks)
    return steady + sum(blocks) + sum(transfers) + max(0.0, exposed)


@given(seed=st.integers(0, 10**9), micro_batch=st.sampled_from([1, 2, 4]))
@settings(max_examples=20, deadline=None)
def test_the_step_is_the_shortest_within_a_thousandth(seed: int, micro_batch: int) -> None:
    problem = busy_problem(seed)
    found, plan = planned("dapple", problem, micro_batch, latency)
    shortest = best(problem, micro_batch, latency)
    assert shortest * (1 - 1e-9) <= found <= shortest * (1 + 1.1e-3)
    assert plan is not None
    verify(plan)


def test_latency_by_hand() -> None:
    # Two stages of 4 and 3 layers (join rides along): 3 x 4 ms a sample and layer, 8 micro-batches of one sample.
    problem = towers([6], 2, 8, layer=(0.0, 1e-3), join=(0.0, 1e-3), parameter_bytes=1e9)
    found, plan = planned("dapple", problem, 1, latency)
    assert plan is not None
    assert [stage.degree for stage in plan.stages] == [1, 1]
    assert found == pytest.approx(7 * 12e-3 + 21e-3 + 2 * 1e3 / 5e10, rel=1e-6)


def test_a_longer_step_is_found_if_the_shortest_does_not_fit() -> None:
    problem = towers([6], 4, 16, saved_bytes=1e8, memory_bytes=1.5e9)
    plan = PLANNERS["dapple"].plan(problem, Options())
    verify(plan)
    assert memory_shortfall(plan) <= 0


@pytest.mark.parametrize("seed", range(4))
def test_one_more_device_never_lengthens_the_step(seed: int) -> None:
    fewer, more = (busy_problem(seed, most_ops=6, devices=devices) for devices in (2, 3))
    assert planned("dapple", more, 2, latency)[0] <= planned("dapple", fewer, 2, latency)[0] * (1 + 1e-3)
