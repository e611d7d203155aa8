"""Variants of a problem: with other names, order or units, or with more devices, memory or bandwidth."""

import random
from dataclasses import replace

from graphpipe.cluster import Device, Link
from graphpipe.costs import Curve
from graphpipe.planners.problem.partition import Problem


def renamed(problem: Problem, seed: int) -> Problem:
    """Give the operators other names, which sort in another order."""
    names = [f"x{n}" for n in range(len(problem.graph.ops))]
    random.Random(seed).shuffle(names)
    new = dict(zip((op.name for op in problem.graph.ops), names, strict=True))
    ops = tuple(replace(op, name=new[op.name]) for op in problem.graph.ops)
    edges = tuple(replace(edge, source=new[edge.source], target=new[edge.target]) for edge in problem.graph.edges)
    graph = replace(problem.graph, ops=ops, edges=edges)
    rows = tuple(replace(row, op=new[row.op]) for row in problem.costs.rows)
    return replace(problem, graph=graph, costs=replace(problem.costs, rows=rows, graph_fingerprint=graph.fingerprint))


def shuffled(problem: Problem, seed: int) -> Problem:
    """List the operators and edges in another order."""
    rng, ops, edges = random.Random(seed), list(problem.graph.ops), list(problem.graph.edges)
    rng.shuffle(ops)
    rng.shuffle(edges)
    graph = replace(problem.graph, ops=tuple(ops), edges=tuple(edges))
    return replace(problem, graph=graph, costs=replace(problem.costs, graph_fingerprint=graph.fingerprint))


def scaled(problem: Problem, factor: float) -> Problem:
    """Make all computation and communication take `factor` times as long."""

    def curve(of: Curve) -> Curve:
        return Curve(lines=tuple((fixed * factor, slope * factor) for fixed, slope in of.lines))

    def link(of: Link) -> Link:
        return Link(
            latency_seconds=of.latency_seconds * factor,
            bandwidth_bytes_per_second=of.bandwidth_bytes_per_second / factor,
        )

    rows = tuple(
        replace(
            row,
            forward=curve(row.forward),
            input_gradient=curve(row.input_gradient),
            weight_gradient=curve(row.weight_gradient),
        )
        for row in problem.costs.rows
    )
    costs = replace(
        problem.costs,
        rows=rows,
        optimizer_seconds_per_parameter_byte=problem.costs.optimizer_seconds_per_parameter_byte * factor,
        task_overhead_seconds=problem.costs.task_overhead_seconds * factor,
    )
    here = problem.cluster
    kinds = tuple(
        replace(kind, host_bandwidth_bytes_per_second=kind.host_bandwidth_bytes_per_second / factor)
        for kind in here.device_types
    )
    cluster = replace(here, device_types=kinds, intra_node=link(here.intra_node), inter_node=link(here.inter_node))
    return replace(problem, costs=costs, cluster=cluster)


def with_a_device(problem: Problem) -> Problem:
    """Add a device to the last node."""
    here = problem.cluster
    last = here.devices[-1]
    return replace(
        problem,
        cluster=replace(here, devices=(*here.devices, Device(name="new", type=last.type, node=last.node))),
    )


def with_memory(problem: Problem) -> Problem:
    """Double the memory of every device."""
    kinds = tuple(replace(kind, memory_bytes=2 * kind.memory_bytes) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=kinds))


def with_bandwidth(problem: Problem) -> Problem:
    """Multiply the bandwidth of every link by four."""
    here = problem.cluster

    def wider(link: Link) -> Link:
        return replace(link, bandwidth_bytes_per_second=4 * link.bandwidth_bytes_per_second)

    return replace(problem, cluster=replace(here, intra_node=wider(here.intra_node), inter_node=wider(here.inter_node)))
