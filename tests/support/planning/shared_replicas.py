"""Graphs whose operators several devices can share, with costs that are easy to compute by hand."""

import itertools
from dataclasses import replace

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.graph.op_shards import Exchanges, OpShards, ShardFigures, SubmoduleShards
from graphpipe.planners.problem.partition import Problem


def shards(
    *, most: int = 8, flops: float = 8, parameters: float = 80, saved: float = 10, forward: float = 40
) -> OpShards:
    """Return a layout: two all-reduces in the forward, and one of half of the bytes in the backward."""
    return OpShards(
        most=most,
        submodules=(SubmoduleShards(submodule="a", style="column"),),
        parameters=(("a.weight", 0),),
        parameter_bytes=parameters,
        figures=ShardFigures(
            flops_per_sample=flops,
            saved_bytes_per_sample=saved,
            forward=Exchanges(reductions=2, bytes_per_sample=forward),
            backward=Exchanges(reductions=1, bytes_per_sample=forward / 2),
        ),
    )


def layer(name: str, layout: OpShards | None, *, weight: str = "", parameters: float = 100) -> Op:
    """Return an operator of 10 FLOPs and 20 saved bytes per sample. Its weight has its name unless one is given."""
    work, weight = Work(flops_per_sample=10, saved_bytes_per_sample=20), weight or f"{name}.weight"
    layout = layout and replace(layout, parameters=((weight, 0),))
    return Op(name=name, parameters=(weight,), parameter_bytes=parameters, work=work, shards=layout)


def chain(*ops: Op, sent: float = 4) -> Graph:
    """Return operators one after the other."""
    pairs = itertools.pairwise(ops)
    edges = tuple(Edge(source=one.name, target=other.name, bytes_per_sample=sent) for one, other in pairs)
    return Graph(name="chain", ops=ops, edges=edges)


def table(graph: Graph, *, fixed: float = 1, slope: float = 10) -> CostTable:
    """Return measured costs: forward and each gradient take `fixed + slope * samples` seconds."""
    curve = Curve(lines=((fixed, slope),))
    rows = tuple(
        OpCost(
            op=op.name,
            device_type="gpu",
            forward=curve,
            input_gradient=curve if op.name in graph.returning else Curve(),
            weight_gradient=curve,
            source="profiled",
        )
        for op in graph.ops
    )
    return CostTable(graph_fingerprint=graph.fingerprint, rows=rows, optimizer_seconds_per_parameter_byte=1.0)


def cluster(devices: int, *, per_node: int = 4, memory_bytes: float = 1e6) -> Cluster:
    """Return equal devices. Inside a node: 3 s, then 4 bytes per second. Between nodes: 5 s, then 1 byte per second."""
    kind = DeviceType(
        name="gpu",
        memory_bytes=memory_bytes,
        peak_flops_per_second=1.0,
        memory_bytes_per_second=1.0,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    return Cluster(
        name="test",
        device_types=(kind,),
        devices=tuple(Device(name=f"d{at}", type="gpu", node=f"n{at // per_node}") for at in range(devices)),
        intra_node=Link(latency_seconds=3, bandwidth_bytes_per_second=4),
        inter_node=Link(latency_seconds=5, bandwidth_bytes_per_second=1),
    )


def problem(
    graph: Graph, devices: int, batch_size: int = 4, *, per_node: int = 4, memory_bytes: float = 1e6
) -> Problem:
    """Return a problem of a graph with the costs of `table`."""
    return Problem(graph, table(graph), cluster(devices, per_node=per_node, memory_bytes=memory_bytes), batch_size)
