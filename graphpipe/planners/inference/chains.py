"""Chains of stages for inference: the dynamic programme's answers as plans, for every micro-batch size."""

from collections.abc import Iterator
from math import inf

import numpy as np

from graphpipe.cluster import Link
from graphpipe.planners.inference.chain_program import ChainProblem, fewest_seconds
from graphpipe.planners.inference.device_kinds import DeviceKinds
from graphpipe.planners.inference.intervals import BUFFERS, IntervalCosts
from graphpipe.planners.problem.limits import MATRICES
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans.plan import Plan
from graphpipe.plans.sharding import rounded_up
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY


def sizes_of(problem: Problem, options: Options) -> list[int]:
    """Return the micro-batch sizes to try: only the whole mini-batch if an operator needs that."""
    if any(op.whole_batch for op in problem.graph.ops):
        return [problem.batch_size]
    return options.sizes(problem.batch_size)


def chain_plans(
    problem: Problem, options: Options, intervals: IntervalCosts, *, planner: str, chain: bool
) -> Iterator[Plan]:
    """Yield the best chain of stages for each micro-batch size, if one fits.

    For latency, chains with the least sum of seconds, which one micro-batch takes through all of them, are yielded too.

    Args:
        problem: of inference.
        options: the objective, and the micro-batch sizes.
        intervals: of the order of the operators to cut.
        planner: its name.
        chain: let every stage follow the one before it.
    """
    adds = (np.maximum, np.add) if options.inference_objective == "latency" else (np.maximum,)
    kinds = _kinds(problem, len(intervals.order))
    for size in sizes_of(problem, options):
        costs = _costs(problem, intervals, kinds, size)
        for add in adds:
            if cheapest := fewest_seconds(costs, add):
                parts = [Part(intervals.order[first:stop], 1, size) for first, stop, _ in cheapest[1]]
                devices = [(device,) for device in kinds.take([kind for *_, kind in cheapest[1]])]
                yield assemble(problem, parts, planner=planner, schedule=FORWARD_ONLY, chain=chain, devices=devices)


def _kinds(problem: Problem, operators: int) -> DeviceKinds:
    kinds = DeviceKinds.alike(problem.cluster)
    small = kinds.subsets * len(kinds.counts) * operators**2 <= MATRICES
    return kinds if small else DeviceKinds.by_type(problem.cluster)


def _costs(problem: Problem, intervals: IntervalCosts, kinds: DeviceKinds, size: int) -> ChainProblem:
    several = intervals.needed_bytes(size, min(rounded_up(problem.batch_size, size), BUFFERS * size))
    several[0, -1] = intervals.needed_bytes(size, size)[0, -1]  # alone, without a message to wait for
    seconds = [
        np.where(several <= problem.cluster.types[kind].memory_bytes, intervals.seconds(kind, size), inf)
        for kind in map(kinds.device_type, range(len(kinds.counts)))
    ]
    cuts = intervals.cuts * size
    messages = [
        [_seconds(kinds.link(one, other), cuts) for other in range(len(seconds))] for one in range(len(seconds))
    ]
    return ChainProblem(seconds=seconds, messages=np.array(messages), counts=kinds.counts)


def _seconds(link: Link | None, counts: np.ndarray) -> np.ndarray:
    if link is None:
        return np.zeros_like(counts)
    return np.where(counts > 0, link.latency_seconds + counts / link.bandwidth_bytes_per_second, 0.0)
