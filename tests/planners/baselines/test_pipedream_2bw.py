"""PipeDream-2BW's planner: equal blocks of one width, compared with every such partition."""

from dataclasses import replace

import pytest
from baseline_oracles import Pipeline, all_reduce, best, busy_problem, compute, cuts, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import towers

from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.stage import WeightPolicy
from graphpipe.plans.verify import verify


def slowest(problem: Problem, micro_batch: int, pipeline: Pipeline) -> float:
    ends = cuts(problem, pipeline)
    return max(
        max(
            compute(problem, micro_batch, ops, width, recompute),
            all_reduce(problem, ops, width) / problem.batch_size,
            ends[at] / width,
            ends[at + 1] / width,
        )
        for at, (ops, width, recompute) in enumerate(pipeline)
    )


@given(
    seed=st.integers(0, 10**9),
    micro_batch=st.sampled_from([1, 2, 4, 16]),
    tight=st.booleans(),
    weights=st.sampled_from(["flush", "double-buffer"]),
)
@settings(max_examples=20, deadline=None)
def test_width_and_depth_are_chosen_best(seed: int, micro_batch: int, tight: bool, weights: WeightPolicy) -> None:
    problem = replace(busy_problem(seed, tight=tight), weights=weights)
    found, plan = planned("pipedream-2bw", problem, micro_batch, slowest)
    assert found == pytest.approx(best(problem, micro_batch, slowest, even=True, recompute="all"), rel=1e-9)
    if plan:
        verify(plan)
        assert len({stage.degree for stage in plan.stages}) == 1


def test_identical_layers_make_identical_blocks() -> None:
    problem = towers([8], 4, 16, join=(0.0, 0.0), parameter_bytes=1e9)
    _, plan = planned("pipedream-2bw", problem, 2, slowest)
    assert plan is not None
    layers = [sum(op != "join" for op in stage.ops) for stage in plan.stages]
    assert layers == [2, 2, 2, 2]


@pytest.mark.parametrize("seed", range(4))
def test_one_more_device_never_raises_the_objective(seed: int) -> None:
    fewer, more = (busy_problem(seed, most_ops=6, devices=devices) for devices in (2, 3))
    assert planned("pipedream-2bw", more, 2, slowest)[0] <= planned("pipedream-2bw", fewer, 2, slowest)[0] * (1 + 1e-9)
