"""The proof that parameters do not fit, against the searches for plans."""

from dataclasses import replace

import pytest
from problems import towers

from graphpipe.errors import Infeasible
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.too_large import too_large
from graphpipe.planners.search.search import search


@pytest.mark.timeout(60)
def test_what_is_too_large_is_never_planned():
    # Four operators of 4 GB with optimizer state, on four devices.
    proved, planned = 0, 0
    for memory in (3.9e9, 4.1e9, 4.9e9, 5.1e9, 8.1e9, 1e10):
        for state in ("whole", "optimizer", "all"):
            problem = towers([2, 2], 4, 8, parameter_bytes=1e9, memory_bytes=memory, saved_bytes=1.0)
            problem = replace(problem, state=state)
            fits = _fits(problem)
            assert not (too_large(problem) and fits)
            proved, planned = proved + too_large(problem), planned + fits
    assert proved
    assert planned


def _fits(problem: Problem) -> bool:
    try:
        search(problem, Options(), planner="graphpipe", chains=(False, True))
    except Infeasible:
        return False
    return True


def test_replicas_that_shard_everything_hold_a_part_of_one_operator():
    problem = towers([1], 4, 8, parameter_bytes=1e9, memory_bytes=3.9e9)
    assert too_large(problem)
    assert too_large(replace(problem, state="optimizer"))
    assert not too_large(replace(problem, state="all"))
