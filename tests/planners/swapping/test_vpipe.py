"""vPipe's published shape, and its decisions for one stage by hand."""

from dataclasses import replace

import pytest
from problems import towers

from graphpipe.costs import CostModel
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.swapping.swap_or_recompute import SwapOrRecompute
from graphpipe.planners.swapping.vpipe import plan_vpipe
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.stage import Stage
from graphpipe.plans.verify import verify


def with_host_bandwidth(problem: Problem, bandwidth: float) -> Problem:
    kinds = tuple(replace(kind, host_bandwidth_bytes_per_second=bandwidth) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=kinds))


def test_recomputation_falls_with_the_stage_and_is_zero_at_the_last():
    # Sixteen equal layers of 100 MB a sample, in four stages: the first keeps four samples in flight, the last one.
    problem = towers([16], 4, 16, layer=(0.0, 1e-3), saved_bytes=1e8, memory_bytes=9e8)
    plan = plan_vpipe(with_host_bandwidth(problem, 1e6), Options(micro_batch=1))
    verify(plan)
    again = [plan.cost_model.task_seconds(stage.ops, 0, 1, stage.recompute) for stage in plan.stages]
    kept = [plan.cost_model.task_seconds(stage.ops, 0, 1) for stage in plan.stages]
    added = [one.backward - other.backward for one, other in zip(again, kept, strict=True)]
    assert len(added) == 4
    assert added == sorted(added, reverse=True)
    assert added[0] > 0
    assert added[-1] == 0
    assert not any(stage.offload for stage in plan.stages)
    # The slowest stage gave operators away.
    assert len(plan.stages[0].ops) < len(plan.stages[-1].ops)


@pytest.mark.parametrize(("bandwidth", "recomputed", "swapped"), [(1e6, 1, 0), (1e12, 0, 2), (3e10, 1, 1)])
def test_what_one_stage_swaps_and_recomputes(bandwidth: float, recomputed: int, swapped: int):
    # Five operators save 100 MB of each of 4 samples in flight: 2 GB, 300 MB too much. Recomputing one frees 300 MB,
    # besides the 100 MB that come back. Swapping one frees 2 of 4 samples, 200 MB. Copies of one take 0.2 s / 30 = 6.7
    # ms at 30 GB/s, so that the window of 10 ms has room for one of them.
    problem = with_host_bandwidth(towers([5], 1, 4, saved_bytes=1e8, parameter_bytes=0.0), bandwidth)
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    stage = Stage(name="s", ops=problem.graph.order[:5], devices=(0,), micro_batch=1, in_flight=4)
    relief = SwapOrRecompute.of(problem, costs, 1.0)
    needed = stage_memory(costs, stage).total(4.0)
    found = relief.fitted(stage, needed - 2.9e8, window_seconds=0.01)
    assert stage_memory(costs, found).total(4.0) <= needed - 2.9e8
    names = found.recompute if isinstance(found.recompute, tuple) else ()
    assert (len(names), len(found.offload)) == (recomputed, swapped)
    assert relief.added_seconds(found, window_seconds=0.01) == pytest.approx(2e-3 * recomputed)
