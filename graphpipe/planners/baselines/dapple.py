"""`dapple`: DAPPLE's objective, the latency of one synchronous step, rather than the bottleneck alone.

    stage 0   F F F     B F B F B   B   B | AR_0          filling: one micro-batch through all stages
    stage 1     F F   B F B F B   B   |~~~ AR_1           steady: M - 1 micro-batches at the slowest stage
    stage 2       F B F B F B   |~~~~~~~ AR_2             last: what no drain hides of an all-reduce

References:
    Fan et al.: DAPPLE: a pipelined data parallel approach for training large models. PPoPP 2021, section 4.
"""

from collections.abc import Iterable

from graphpipe.planners.baselines.baseline import Baseline, degrees_of
from graphpipe.planners.baselines.stage_cuts import Ways
from graphpipe.planners.baselines.stage_loads import Landscape, StageLoads, all_reduce_seconds_per_byte
from graphpipe.planners.baselines.step_latency import Lines, Step
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.search.size_settings import far_bandwidth
from graphpipe.plans.plan import Plan


def plan_dapple(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline of the shortest step.

        L = (M - 1) max_i block_i + sum_i (block_i + transfer_i) + max_i max(0, allreduce_i - i max_j block_j)

    with M micro-batches, the seconds of one micro-batch at stage i = 0, 1, ... and 2 bytes(cut) / (d bandwidth) for
    the cut before it. The published planner keeps one best plan per prefix, which need not be optimal, and never
    checks memory. Here L is minimal to 0.1 % where M is at least the number of stages, and where the stages do not
    fit, each is given room for a pipeline as long as the devices behind it allow.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="dapple", draw=_draw).plan(problem, options)


def _draw(landscape: Landscape, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(landscape, micro_batch, degrees_of(landscape.problem, micro_batch), "none", "none")
    lines = [_lines(loads, at, ways) for at, ways in enumerate(loads.ladder().ways, start=1)]
    problem = landscape.problem
    devices, micro_batches = len(problem.cluster.devices), problem.batch_size // micro_batch
    shortest = Step(lines, devices, micro_batches, memory=False).shortest()
    if not all(cut.fits for cut in shortest):
        shortest = Step(lines, devices, micro_batches, memory=True).shortest() or shortest
    yield landscape.parts(shortest, micro_batch)


def _lines(loads: StageLoads, at: int, ways: Ways) -> list[Lines]:
    """Return the ways to cut the first stage off one downset, by degree."""
    land, size, found = loads.landscape, loads.micro_batch, list[Lines]()
    trainable = land.downsets.members @ land.costs.trainable_bytes[land.positions]
    for degree in loads.degrees:
        some = ways.only(ways.devices == degree)
        transfer = 2 * land.cut_bytes[at] * size / degree / far_bandwidth(land.problem)
        reduced = trainable[at] - trainable[some.below]
        all_reduce = reduced * all_reduce_seconds_per_byte(land.problem, degree)
        found.append(Lines(degree, some.below, some.seconds * size, transfer, all_reduce, some.limit))
    return found
