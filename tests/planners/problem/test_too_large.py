"""The proof that a problem does not fit in memory, against the searches for plans and stages."""

from dataclasses import replace

import pytest
from problems import random_problem, towers

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import degrees_of
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


def test_no_stages_fit_where_one_micro_batch_of_each_does_not():
    refused = fitting = 0
    for seed in range(40):
        problem = random_problem(seed)
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        size = problem.batch_size
        whole = costs.op_bytes.least_state.sum() + costs.op_bytes.saved.sum() * size
        for share in (0.3, 0.5, 0.7, 1.0, 2.0):
            limited = _with_memory(problem, float(share * whole) / len(problem.cluster.devices))
            found = _stage_loads(limited, size).bottleneck_search().solve()
            fits = bool(found) and all(cut.fits for cut in found)
            assert not (too_large(limited, size) and fits)
            refused += too_large(limited, size)
            fitting += fits
    assert refused >= 80
    assert fitting >= 5


def _with_memory(problem: Problem, memory_bytes: float) -> Problem:
    kinds = tuple(replace(kind, memory_bytes=memory_bytes) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=kinds))


def _stage_loads(problem: Problem, size: int) -> StageLoads:
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    table = DownsetTable.of(problem, costs, problem.graph, Downsets.of(problem.graph))
    return StageLoads(table, size, degrees_of(problem, size))
