"""`dapple`: minimises DAPPLE's objective, the latency of one synchronous step.

    stage 0   F F F     B F B F B   B   B | AR_0          fill: one micro-batch through all stages
    stage 1     F F   B F B F B   B   |~~~ AR_1           steady: M - 1 micro-batches at the slowest stage
    stage 2       F B F B F B   |~~~~~~~ AR_2             end: the part of an all-reduce that the drain does not hide

References:
    Fan et al.: DAPPLE: a pipelined data parallel approach for training large models. PPoPP 2021, section 4.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_cuts import StageCuts
from graphpipe.planners.baselines.stage_loads import StageLoads
from graphpipe.planners.baselines.step_latency import FirstStages, StepLatency
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.problem.stage_costs import all_reduce_seconds_per_byte, degrees_of, far_bandwidth
from graphpipe.plans.plan import Plan
from graphpipe.plans.sharding import count_micro_batches


def plan_dapple(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline with the shortest step.

        L = (M - 1) max_i block_i + sum_i (block_i + transfer_i) + max_i max(0, allreduce_i - i max_j block_j)

    with M micro-batches, block_i the seconds of one micro-batch at stage i = 0, 1, ..., and transfer_i =
    2 bytes(cut) / (d bandwidth) for the cut before stage i. The published planner keeps one best plan per prefix,
    which need not be optimal, and does not check memory. Here L is minimal to 0.1 % if M is at least the number of
    stages. If the stages do not fit in memory, each stage must instead fit for as many stages after it as there are
    devices left.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="dapple", partitioner=_partitions).plan(problem, options)


def shortest_step(downset_table: DownsetTable, micro_batch: int, most_seconds: float = inf) -> list[Part]:
    """Return the stages of the shortest step for one micro-batch size. They may not fit in memory.

    Args:
        downset_table: of the graph's order.
        micro_batch: samples of a micro-batch.
        most_seconds: of the step. If it is longer, nothing is returned.
    """
    loads = StageLoads(downset_table, micro_batch, degrees_of(downset_table.problem, micro_batch), "none", "none")
    problem = downset_table.problem
    latency = StepLatency(
        _first_stages(loads),
        len(problem.cluster.devices),
        count_micro_batches(problem.batch_size, micro_batch),
        memory=False,
        most_seconds=most_seconds,
    )
    shortest = latency.shortest()
    if not all(cut.fits for cut in shortest):
        shortest = replace(latency, memory=True).shortest() or shortest
    return downset_table.parts(shortest, micro_batch)


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    yield shortest_step(downset_table, micro_batch)


def _first_stages(loads: StageLoads) -> list[FirstStages]:
    """Return the stages that can be split off downsets, by the downset that remains."""
    table, size, cuts = loads.downset_table, loads.micro_batch, loads.bottleneck_search().cuts
    every, degrees = StageCuts.concatenate(cuts), np.array(loads.degrees)
    upper = np.repeat(np.arange(1, len(cuts) + 1), [len(cut.below) for cut in cuts])
    number = np.searchsorted(degrees, every.devices)
    trainable = table.downsets.members @ table.costs.op_bytes.trainable[table.positions]
    per_byte = np.array([all_reduce_seconds_per_byte(table.problem, degree) for degree in loads.degrees])
    stages = FirstStages(
        upper,
        every.devices,
        every.seconds * size,
        2 * table.cut_bytes[upper] * size / every.devices / far_bandwidth(table.problem),
        (trainable[upper] - trainable[every.below]) * per_byte[number],
        every.limit,
    ).only(order := np.lexsort((every.devices, -upper, every.below)))
    ends = np.searchsorted(every.below[order], np.arange(len(cuts)), side="right")
    return [stages.only(slice(start, end)) for start, end in pairwise([0, *ends.tolist()])]


DAPPLE = Planner(name="dapple", plan=plan_dapple, pipeline="chain")
