"""The schedule `auto` is never behind 1F1B."""

import random
from dataclasses import replace

import pytest

import graphpipe as gp
from graphpipe.cluster import Cluster, Device, Link
from graphpipe.graph import Edge, Graph, Op, Work


def random_graph(count: int, draw: random.Random) -> Graph:
    """Return a graph whose operators read one or two of the four before them."""
    ops, edges = list[Op](), list[Edge]()
    for at in range(count):
        sent = draw.choice([1, 4, 16]) * 2**14 * draw.uniform(0.5, 2)
        weights = draw.uniform(1, 20) * 2**20
        work = Work(
            flops_per_sample=draw.uniform(1, 20) * 1e9,
            traffic_bytes_per_sample=sent * 3,
            saved_bytes_per_sample=sent * 2,
            kernels=4,
        )
        op = Op(name=f"o{at}", parameters=(f"w{at}",), parameter_bytes=weights, output_bytes_per_sample=sent, work=work)
        ops.append(op)
        before = range(max(0, at - 4), at)
        for source in draw.sample(before, min(at, draw.choice([1, 1, 2]))) if at else ():
            count_of = ops[source].output_bytes_per_sample
            edges.append(Edge(source=f"o{source}", target=f"o{at}", bytes_per_sample=count_of))
    return Graph(name="random", ops=tuple(ops), edges=tuple(edges))


@pytest.mark.parametrize("seed", [5004, 5015])
def test_auto_is_not_slower_than_1f1b_on_random_graphs(seed: int) -> None:
    # A search that ranks plans by split backwards ended 1.5 and 8.4 % behind one that does not.
    draw = random.Random(seed)
    graph = random_graph(draw.choice([4, 5, 8]), draw)
    count, _, bandwidth = draw.choice([3, 4]), draw.random(), draw.choice([10.6e9, 1.25e9, 0.125e9])
    kind = replace(Cluster.preset("summit:1x1").device_types[0], memory_bytes=16e9)
    cluster = Cluster(
        name="two nodes",
        device_types=(kind,),
        devices=tuple(Device(name=f"d{at}", type=kind.name, node=f"n{2 * at // (count + 1)}") for at in range(count)),
        intra_node=Link(latency_seconds=8e-6, bandwidth_bytes_per_second=43e9),
        inter_node=Link(latency_seconds=50e-6, bandwidth_bytes_per_second=bandwidth),
    )
    costs = gp.estimate(graph, cluster)
    auto, in_order = (
        gp.simulate(gp.plan(graph, costs, cluster, batch_size=12, schedule=name)).step_seconds
        for name in ("auto", "1f1b")
    )
    assert auto <= in_order
