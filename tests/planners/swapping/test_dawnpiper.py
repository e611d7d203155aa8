"""DawnPiper's binary partition against every partition of random chains, with the same decisions about memory."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

from problems import cluster, table

from graphpipe.costs import CostModel
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem, assemble
from graphpipe.planners.swapping.chain_stages import ChainStages, partitions_of, worst
from graphpipe.planners.swapping.dawnpiper import binary_partition, fitting_partition, plan_dawnpiper
from graphpipe.planners.swapping.vpipe import plan_vpipe
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds

OPERATORS = 14
SCHEDULES = ("1f1b", "zb-h1")


def random_chain(seed: int) -> Problem:
    """Return a chain for four devices whose memory is short for some cuts."""
    rng = random.Random(seed)
    names = [f"o{at}" for at in range(OPERATORS)]
    ops = tuple(
        Op(
            name=name,
            parameter_bytes=rng.choice([0.0, 1e6, 2e7]),
            work=Work(saved_bytes_per_sample=rng.choice([1e6, 3e6, 1e7])),
        )
        for name in names
    )
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=rng.choice([1e4, 1e6])) for a, b in pairwise(names))
    graph = Graph(name="chain", ops=ops, edges=edges)
    devices = cluster(4, memory_bytes=rng.choice([1.8e8, 2.4e8, 3e8]))
    slow = replace(devices.device_types[0], host_bandwidth_bytes_per_second=rng.choice([1e9, 5e9]))
    curves = {name: (0.0, rng.choice([1, 2, 3, 5]) * 1e-3) for name in names}
    return Problem(graph, table(graph, curves), replace(devices, device_types=(slow,)), 16)


def stages_of(problem: Problem) -> ChainStages:
    """Return the chain of single devices with micro-batches of one sample."""
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    return next(ChainStages.all_of(DownsetTable.of(problem, costs, problem.graph, Downsets.chain(problem.graph)), 1))


def test_at_most_four_percent_slower_than_the_best_of_all_partitions():
    relieved = 0
    for seed in range(12):
        stages = stages_of(random_chain(seed))
        every = ([0, *cuts, OPERATORS] for cuts in combinations(range(1, OPERATORS), stages.count - 1))
        best = min(worst([stage.price for stage in stages.all_priced(cuts)]) for cuts in every)
        if best.short_bytes:
            continue
        found = binary_partition(stages)
        price = worst([stage.price for stage in found])
        assert price.short_bytes == 0
        assert best.seconds <= price.seconds <= 1.04 * best.seconds
        relieved += any(stage.part.recompute != "none" or stage.part.offload for stage in found)
    assert relieved >= 3


def test_partitions_that_must_fit_are_as_good_and_a_limit_on_seconds_loses_only_slower_ones():
    found = 0
    for seed in range(8):
        problem = random_chain(seed)
        costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
        table = DownsetTable.of(problem, costs, problem.graph, Downsets.chain(problem.graph))
        prices = [worst([stage.price for stage in binary_partition(each)]) for each in ChainStages.all_of(table, 4)]
        fitting = sum(not price.short_bytes for price in prices)
        every = list(partitions_of(fitting_partition, table, 4))
        assert len(every) == fitting
        plans = [assemble(problem, parts, planner="test", chain=True) for parts in every]
        best = min((step_seconds(replace(plan, schedule=name)) for plan in plans for name in SCHEDULES), default=0.0)
        assert bool(list(partitions_of(fitting_partition, table, 4, most_seconds=best * 1.001))) == bool(fitting)
        assert not list(partitions_of(fitting_partition, table, 4, most_seconds=0.0))
        found += fitting
    assert found


def test_plans_are_sound_and_keep_everything_with_memory_to_spare():
    problem = random_chain(0)
    plan = plan_dawnpiper(problem, Options(micro_batch=1))
    verify(plan)
    # With memory to spare, both planners keep everything.
    roomy = tuple(replace(kind, memory_bytes=16e9) for kind in problem.cluster.device_types)
    problem = replace(problem, cluster=replace(problem.cluster, device_types=roomy))
    for planner in (plan_dawnpiper, plan_vpipe):
        kept = planner(problem, Options(micro_batch=1)).stages
        assert {(stage.recompute, stage.offload) for stage in kept} == {("none", ())}
