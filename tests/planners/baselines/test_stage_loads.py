"""Whether a micro-batch size may fit in memory, before its cuts are computed."""

from dataclasses import replace

from problems import random_problem

from graphpipe.costs import CostModel
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import StageLoads
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import degrees_of


def with_memory(problem: Problem, memory_bytes: float) -> Problem:
    kinds = tuple(replace(kind, memory_bytes=memory_bytes) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=kinds))


def loads_of(problem: Problem, size: int) -> StageLoads:
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    table = DownsetTable.of(problem, costs, problem.graph, Downsets.of(problem.graph))
    return StageLoads(table, size, degrees_of(problem, size))


def test_no_stages_fit_where_one_micro_batch_of_each_does_not() -> None:
    refused = fitting = 0
    for seed in range(40):
        problem = random_problem(seed)
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        size = problem.batch_size
        whole = costs.op_bytes.least_state.sum() + costs.op_bytes.saved.sum() * size
        for share in (0.3, 0.5, 0.7, 1.0, 2.0):
            limited = with_memory(problem, float(share * whole) / len(problem.cluster.devices))
            loads = loads_of(limited, size)
            found = loads.bottleneck_search().solve()
            fits = bool(found) and all(cut.fits for cut in found)
            assert loads.may_fit() or not fits
            refused += not loads.may_fit()
            fitting += fits
    assert refused >= 80
    assert fitting >= 5
