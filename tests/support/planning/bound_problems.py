"""Problems in which every cost of a bound matters, and the least bottleneck over all their plans."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
from problems import cluster, table

from graphpipe.cluster import Cluster, Link, PairLink
from graphpipe.costs import CostModel, Recompute
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.by_hand import HandPlan, HandStage


def heavy_problem(seed: int, *, most_ops: int = 6, devices: int | None = None, uneven: bool = False) -> Problem:
    """Draw operators with fixed costs, weights, activations and traffic, on devices with little memory.

    Args:
        seed: for the random draw.
        most_ops: the largest number of operators.
        devices: the number of devices. None draws 1 to 4.
        uneven: use two types of devices, and a fast link between two of them.
    """
    rng = random.Random(seed)
    count, density = rng.randint(1, most_ops), rng.choice([0.2, 0.5, 0.8])
    ops = tuple(
        Op(
            name=f"o{n}",
            parameter_bytes=rng.choice([0.0, 1e7, 1e8]),
            work=Work(saved_bytes_per_sample=rng.choice([0.0, 2e7])),
        )
        for n in range(count)
    )
    edges = tuple(
        Edge(source=f"o{a}", target=f"o{b}", bytes_per_sample=rng.choice([0.0, 1e6]))
        for b in range(count)
        for a in range(b)
        if rng.random() < density
    )
    graph = Graph(name="heavy", ops=ops, edges=edges)
    curves = {op.name: (rng.choice([0.0, 2e-3]), rng.choice([1, 2, 3, 5, 13]) * 1e-3) for op in ops}
    devices = devices or rng.randint(1, 4)
    here = cluster(devices, per_node=rng.choice([1, 2, 4]), memory_bytes=rng.choice([6e8, 1.2e9, 16e9]))
    here = replace(here, overlap=rng.random() < 0.5)
    costs = replace(
        table(graph, curves),
        optimizer_seconds_per_parameter_byte=rng.choice([0.0, 1e-10]),
        task_overhead_seconds=rng.choice([0.0, 1e-3]),
    )
    problem = Problem(graph, costs, here, rng.choice([4, 6, 8]))
    return _uneven(problem) if uneven else problem


def _uneven(problem: Problem) -> Problem:
    """Make every second device half as fast, with half the memory."""
    here = problem.cluster
    (fast,) = here.device_types
    slow = replace(fast, name="slow", memory_bytes=fast.memory_bytes / 2)
    devices = tuple(replace(each, type="slow" if n % 2 else each.type) for n, each in enumerate(here.devices))
    pairs = (PairLink(first="d0", second="d1", link=Link(latency_seconds=0.0, bandwidth_bytes_per_second=2e11)),)
    mixed: Cluster = replace(
        here, device_types=(fast, slow), devices=devices, pair_links=pairs if len(devices) > 1 else ()
    )
    rows = list(problem.costs.rows)
    for row in problem.costs.rows:
        curve = replace(row.forward, lines=tuple((2 * fixed, 2 * slope) for fixed, slope in row.forward.lines))
        rows.append(replace(row, device_type="slow", forward=curve, input_gradient=curve, weight_gradient=curve))
    return replace(problem, cluster=mixed, costs=replace(problem.costs, rows=tuple(rows)))


def least_bottleneck(problem: Problem, sizes: tuple[int, ...]) -> float:
    """Return the least seconds per mini-batch of the slowest stage, over all partitions, degrees and micro-batch sizes.

    The devices are equal and each runs one stage. Transfers take no time, and a ring all-reduce uses the best link.
    This is a lower bound for every plan. Some plan reaches it if it does not send between nodes.
    """
    graph, costs, here = problem.graph, CostModel(problem.graph, problem.costs, problem.cluster), problem.cluster
    batch, count, (kind,) = problem.batch_size, len(graph.ops), here.device_types
    before = [sum(1 << graph.index[p] for p in graph.predecessors[op.name]) for op in graph.ops]
    downsets = [s for s in range(1 << count) if all(not s >> i & 1 or before[i] & ~s == 0 for i in range(count))]

    @cache
    def stage(inside: int, degree: int) -> float:
        names = [op.name for n, op in enumerate(graph.ops) if inside >> n & 1]
        gradients = sum(graph[name].parameter_bytes for name in names)
        update = costs.all_reduce_seconds(gradients, tuple(range(degree))) + costs.optimizer_seconds(names)
        found = np.inf
        for size in sizes:
            if size % degree:
                continue
            saved = [graph[name].work.saved_bytes_per_sample * size / degree for name in names]
            # Everything kept, for one micro-batch; or each operator computed again, when it holds what it saves.
            choices: list[tuple[float, Recompute]] = [(sum(saved), "none"), (max(saved), tuple(names))]
            for held, recompute in choices:
                if costs.parameter_bytes.state(names) + held <= kind.memory_bytes:
                    task = costs.task_seconds(names, 0, size / degree, recompute)
                    found = min(found, batch / size * (task.forward + task.backward) + update)
        return found

    @cache
    def least(done: int, left: int) -> float:
        if done == (1 << count) - 1:
            return 0.0
        return min(
            (
                max(stage(larger & ~done, degree), least(larger, left - degree))
                for larger in downsets
                if larger != done and larger & done == done
                for degree in range(1, left + 1)
            ),
            default=np.inf,
        )

    return least(0, len(here.devices))


def random_hand(problem: Problem, seed: int) -> HandPlan:
    """Cut a topological order into stages on random devices. A device may run several stages, or stay unused."""
    rng = random.Random(seed)
    order, count = problem.graph.order, len(problem.cluster.devices)
    cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, len(order) - 1)))
    stages: list[HandStage] = []
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        degree = rng.choice([d for d in range(1, count + 1) if problem.batch_size % d == 0])
        size = rng.choice([b for b in range(degree, problem.batch_size + 1, degree) if problem.batch_size % b == 0])
        devices = tuple(rng.sample(range(count), degree))
        ops = tuple(order[start:stop])
        choices: list[Recompute] = ["none", "none", "full", ops]
        stages.append(HandStage(ops=ops, devices=devices, micro_batch=size, recompute=rng.choice(choices)))
    return HandPlan(stages=tuple(stages))
