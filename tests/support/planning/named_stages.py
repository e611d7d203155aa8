"""Plans over operators with the names that modules of known models have."""

from collections.abc import Sequence
from itertools import pairwise

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Edge, Graph, Op, Shared, Work
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan

LLAMA = ("model.embed_tokens", *(f"model.layers.{number}" for number in range(6)), "lm_head")


def chain_graph(names: Sequence[str] = LLAMA, tied: str = "") -> Graph:
    """Return a chain of submodules. With `tied`, the last one holds the parameter of the first too."""
    return branched_graph(names, list(pairwise(names)), tied)


def branched_graph(names: Sequence[str], edges: Sequence[tuple[str, str]], tied: str = "") -> Graph:
    """Return a graph of submodules, each with one parameter. What begins with `add` is computed between calls."""
    held: dict[str, tuple[str, ...]] = {name: (f"{name}.weight",) for name in names if not name.startswith("add")}
    if tied:
        held[names[-1]] = (*held[names[-1]], tied)
    return Graph(
        name="named",
        ops=tuple(
            Op(
                name=name,
                kind="Layer" if name in held else "glue",
                parameters=held.get(name, ()),
                parameter_bytes=4.0 * len(held.get(name, ())),
                output_bytes_per_sample=4.0,
                work=Work(flops_per_sample=1e6),
            )
            for name in names
        ),
        edges=tuple(Edge(source=source, target=target, bytes_per_sample=4.0) for source, target in edges),
        shared=(Shared(name=tied, bytes=4.0),) if tied else (),
    )


def staged(
    graph: Graph,
    stages: Sequence[tuple[Sequence[str], Sequence[int]]],
    *,
    micro_batches: Sequence[int] = (),
    schedule: str = "1f1b",
) -> Plan:
    """Return the plan of these stages (operators, devices) for a mini-batch of 32 samples, 4 in a micro-batch."""
    cluster = Cluster.preset(f"summit:1x{1 + max(device for _, devices in stages for device in devices)}")
    sizes = micro_batches or [4] * len(stages)
    return hand_plan(
        graph,
        estimate(graph, cluster),
        cluster,
        batch_size=32,
        stages=[
            HandStage(ops=tuple(ops), devices=tuple(devices), micro_batch=size)
            for (ops, devices), size in zip(stages, sizes, strict=True)
        ],
        schedule=schedule,
    )
