"""Small planning problems, and an oracle that tries every partition."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostModel, CostTable, Curve, OpCost
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import stage_seconds

KIND = DeviceType(
    name="gpu",
    memory_bytes=16e9,
    peak_flops_per_second=1e13,
    memory_bytes_per_second=1e12,
    launch_seconds=0.0,
    half_peak_flops=0.0,
)


def cluster(devices: int, *, per_node: int = 4, memory_bytes: float = 16e9, overlap: bool = True) -> Cluster:
    """Equal devices; 50 GB/s inside a node, 12.5 GB/s between nodes."""
    kind = replace(KIND, memory_bytes=memory_bytes)
    return Cluster(
        name="test",
        device_types=(kind,),
        devices=tuple(Device(name=f"d{n}", type="gpu", node=f"n{n // per_node}") for n in range(devices)),
        intra_node=Link(latency_seconds=0.0, bandwidth_bytes_per_second=5e10),
        inter_node=Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.25e10),
        overlap=overlap,
    )


def table(graph: Graph, curves: dict[str, tuple[float, float]]) -> CostTable:
    """An operator's forward takes `fixed + slope * samples` seconds, and so does each of its two gradients."""
    rows = []
    for op in graph.ops:
        curve = Curve(lines=(curves[op.name],))
        row = OpCost(
            op=op.name,
            device_type="gpu",
            source="analytic",
            forward=curve,
            input_gradient=curve,
            weight_gradient=curve,
        )
        rows.append(row)
    return CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows))


def towers(
    branches: Sequence[int],
    devices: int,
    batch_size: int,
    *,
    layer: tuple[float, float] = (1e-3, 1e-3),
    join: tuple[float, float] = (1e-5, 1e-4),
    saved_bytes: float = 1e6,
    parameter_bytes: float = 1e6,
    memory_bytes: float = 16e9,
    whole_batch: bool = False,
) -> Problem:
    """Parallel chains of layers that meet in one operator, `join`."""
    work = Work(saved_bytes_per_sample=saved_bytes)
    ops, edges = [], []
    for branch, layers in enumerate(branches):
        for depth in range(layers):
            ops.append(Op(name=f"b{branch}.{depth}", parameter_bytes=parameter_bytes, work=work))
            after = f"b{branch}.{depth + 1}" if depth + 1 < layers else "join"
            edges.append(Edge(source=f"b{branch}.{depth}", target=after, bytes_per_sample=1e3))
    ops.append(Op(name="join", work=work, whole_batch=whole_batch))
    graph = Graph(name="towers", ops=tuple(ops), edges=tuple(edges))
    curves = {op.name: layer for op in graph.ops} | {"join": join}
    return Problem(graph, table(graph, curves), cluster(devices, memory_bytes=memory_bytes), batch_size)


def random_problem(seed: int, *, most_ops: int = 7, most_devices: int = 4, batch_size: int = 8) -> Problem:
    """A random DAG without traffic on its edges."""
    rng = random.Random(seed)
    count, density = rng.randint(1, most_ops), rng.choice([0.2, 0.5, 0.8])
    ops = tuple(Op(name=f"o{n}", work=Work(saved_bytes_per_sample=1.0)) for n in range(count))
    pairs = [(a, b) for b in range(count) for a in range(b) if rng.random() < density]
    graph = Graph(name="random", ops=ops, edges=tuple(Edge(source=f"o{a}", target=f"o{b}") for a, b in pairs))
    curves = {op.name: (rng.choice([0.0, 1e-3]), rng.choice([1, 2, 3, 5, 8]) * 1e-3) for op in ops}
    return Problem(graph, table(graph, curves), cluster(rng.randint(1, most_devices)), batch_size)


def best_bottleneck(problem: Problem, micro_batch: int) -> float:
    """Return the least seconds per sample of the slowest stage, over all partitions with an acyclic stage graph.

    Such a partition is a chain of downsets. The recursion tries every next downset and every degree.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    before = [sum(1 << graph.index[p] for p in graph.predecessors[op.name]) for op in graph.ops]
    downsets = [s for s in range(1 << count) if all(not s >> i & 1 or before[i] & ~s == 0 for i in range(count))]
    devices = len(problem.cluster.devices)
    degrees = [d for d in (1, 2, 4, 8) if d <= devices and micro_batch % d == 0]
    costs = CostModel(graph, problem.costs, problem.cluster)
    seconds = {d: stage_seconds(problem, costs, micro_batch, d) for d in degrees}

    @cache
    def least(done: int, left: int) -> float:
        if done == (1 << count) - 1:
            return 0.0
        best = np.inf
        for larger in downsets:
            if larger == done or larger & done != done:
                continue
            inside = [i for i in range(count) if (larger & ~done) >> i & 1]
            for degree in degrees:
                if degree <= left:
                    best = min(best, max(seconds[degree][inside].sum(), least(larger, left - degree)))
        return float(best)

    return least(0, devices) / micro_batch
