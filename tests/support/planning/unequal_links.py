"""Clusters whose links are given pair by pair, chains with traffic, and the best plan of all."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

from problems import KIND, table

from graphpipe.cluster import Cluster, Device, Link, PairLink
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.simulator import step_seconds

FAST, SLOW, SITE = 8e9, 1e9, 1e8


def link(bandwidth: float) -> Link:
    """Return a link without latency."""
    return Link(latency_seconds=0.0, bandwidth_bytes_per_second=bandwidth)


def linked(nodes: str, pairs: dict[tuple[int, int], float], *, intra: float = FAST, inter: float = SLOW) -> Cluster:
    """Return a cluster with a device for each letter of `nodes`, which names its node, and the bandwidths of pairs."""
    return Cluster(
        name="test",
        device_types=(KIND,),
        devices=tuple(Device(name=f"d{number}", type=KIND.name, node=node) for number, node in enumerate(nodes)),
        intra_node=link(intra),
        inter_node=link(inter),
        pair_links=tuple(
            PairLink(first=f"d{one}", second=f"d{other}", link=link(bandwidth))
            for (one, other), bandwidth in pairs.items()
        ),
    )


def all_pairs(cluster: Cluster) -> Cluster:
    """Return the cluster with the same links, each written for its pair of devices, on nodes of one device."""
    count = len(cluster.devices)
    pairs: dict[tuple[int, int], float] = {}
    for one, other in combinations(range(count), 2):
        found = cluster.link(one, other)
        assert found is not None
        pairs[one, other] = found.bandwidth_bytes_per_second
    return linked("abcdefghijklmnop"[:count], pairs, intra=1.0, inter=1.0)


def chain_problem(seed: int, cluster: Cluster, *, ops: int = 4, batch_size: int = 8) -> Problem:
    """Draw a chain of operators with weights and traffic that matter."""
    rng = random.Random(seed)
    graph = Graph(
        name="chain",
        ops=tuple(
            Op(
                name=f"o{number}",
                parameter_bytes=rng.choice([0.0, 1e5, 1e6]),
                work=Work(saved_bytes_per_sample=1.0),
            )
            for number in range(ops)
        ),
        edges=tuple(
            Edge(source=f"o{number}", target=f"o{number + 1}", bytes_per_sample=rng.choice([1e4, 1e5, 1e6]))
            for number in range(ops - 1)
        ),
    )
    curves = {op.name: (rng.choice([0.0, 1e-4]), rng.choice([1, 2, 3, 5]) * 1e-4) for op in graph.ops}
    return Problem(graph, table(graph, curves), cluster, batch_size)


def least_step(problem: Problem) -> float:
    """Return the seconds of the fastest 1F1B plan of a chain, of all cuts, degrees, sizes and devices."""
    names = problem.graph.order
    count = len(problem.cluster.devices)
    best = float("inf")
    for size in micro_batch_sizes(problem.batch_size):
        divisors = [degree for degree in range(1, count + 1) if size % degree == 0]
        for stages in range(1, len(names) + 1):
            for cuts in combinations(range(1, len(names)), stages - 1):
                spans = [names[start:end] for start, end in pairwise((0, *cuts, len(names)))]
                for degrees in product(divisors, repeat=stages):
                    parts = [Part(span, degree, size) for span, degree in zip(spans, degrees, strict=True)]
                    for devices in _assignments(degrees, frozenset(range(count))):
                        plan = assemble(problem, parts, planner="all", devices=devices)
                        best = min(best, step_seconds(plan))
    return best


def _assignments(degrees: Sequence[int], free: frozenset[int]) -> Iterator[list[tuple[int, ...]]]:
    if not degrees:
        yield []
        return
    for team in combinations(sorted(free), degrees[0]):
        for others in _assignments(degrees[1:], free.difference(team)):
            yield [team, *others]
