"""Plans of small random problems against brute force (`python -m bench exhaustive` has sixty)."""

import random

import pytest

import graphpipe as gp
from bench.search.brute_force import least_seconds
from bench.search.exhaustive import BATCH, KINDS, random_problem


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("mixed speeds", 9),
        ("mixed speeds", 16),
        ("slow sites", 18),
        pytest.param("slow sites", 13, marks=pytest.mark.slow),
    ],
)
def test_plans_are_near_the_best_where_devices_or_links_differ(kind: str, seed: int) -> None:
    """They were 4.9 to 11.5 % behind, because small changes alone did not lead from any candidate to a better plan."""
    assert kind in KINDS
    problem = random_problem(kind, random.Random(seed))
    shared = len(problem.cluster.devices) == 2
    plan = gp.plan(
        problem.graph,
        problem.costs,
        problem.cluster,
        batch_size=BATCH,
        schedule="1f1b",
        stages_per_device=None if shared else 1,
    )
    assert plan.prediction is not None
    best = least_seconds(problem, plan.prediction.step_seconds, shared=shared)
    assert plan.prediction.step_seconds <= 1.03 * best
