"""The part of a graph that each of the ranks of a replica holds and computes."""

from dataclasses import dataclass, replace

from graphpipe.graph import Graph, Op
from graphpipe.graph.op_shards import OpShards, ShardFigures

NOT_SHARED = OpShards(
    most=1, submodules=(), parameters=(), parameter_bytes=0.0, figures=ShardFigures(flops_per_sample=0.0)
)
"""What the ranks share of an operator without a layout: nothing."""


@dataclass(frozen=True, slots=True)
class RankShares:
    """The shares of one operator's figures that each rank has: 1 if it has all."""

    flops: float
    traffic: float
    saved: float
    parameters: float

    @staticmethod
    def of(graph: Graph, op: Op, ranks: int) -> "RankShares":
        """Return the shares of an operator.

        Args:
            graph: of the operator. A parameter that other operators hold too is divided only if all of them divide it.
            op: the operator.
            ranks: the devices of a replica.
        """
        shards, saving, work = (op.shards or NOT_SHARED).figures_of(ranks), 1 - 1 / ranks, op.work

        def share(shared: float, whole: float) -> float:
            return 1 - saving * min(1.0, shared / whole) if whole else 1.0

        flops = share(shards.flops_per_sample, work.flops_per_sample)
        return RankShares(
            flops=flops,
            traffic=share(shards.traffic_bytes_per_sample, work.traffic_bytes_per_sample),
            saved=share(shards.saved_bytes_per_sample, work.saved_bytes_per_sample),
            parameters=share(_divided_bytes(graph, op), op.parameter_bytes),
        )

    def over(self, other: "RankShares") -> "RankShares":
        """Return these shares, relative to those of other ranks."""
        return RankShares(
            flops=self.flops / other.flops,
            traffic=self.traffic / other.traffic,
            saved=self.saved / other.saved,
            parameters=self.parameters / other.parameters,
        )


def rank_graph(graph: Graph, ranks: int) -> Graph:
    """Return the graph with what each of so many ranks holds and computes of every operator.

    Values between operators are whole on every rank.
    """
    divided = divided_everywhere(graph)
    return replace(
        graph,
        ops=tuple(_rank_op(graph, op, ranks) if op.shards else op for op in graph.ops),
        shared=tuple(
            replace(tied, bytes=tied.bytes / ranks) if tied.name in divided else tied for tied in graph.shared
        ),
    )


def divided_everywhere(graph: Graph) -> frozenset[str]:
    """Return the names of the shared parameters that all their operators divide."""
    return frozenset(
        tied.name
        for tied in graph.shared
        if all(tied.name in dict((graph[op].shards or NOT_SHARED).parameters) for op in graph.holders[tied.name])
    )


def _divided_bytes(graph: Graph, op: Op) -> float:
    shards = op.shards or NOT_SHARED
    names, everywhere = dict(shards.parameters), divided_everywhere(graph) if graph.shared else frozenset[str]()
    kept = sum(tied.bytes for tied in graph.shared if tied.name in names and tied.name not in everywhere)
    return max(0.0, shards.parameter_bytes - kept)


def _rank_op(graph: Graph, op: Op, ranks: int) -> Op:
    share = RankShares.of(graph, op, ranks)
    work = replace(
        op.work,
        flops_per_sample=op.work.flops_per_sample * share.flops,
        traffic_bytes_per_sample=op.work.traffic_bytes_per_sample * share.traffic,
        traffic_bytes_per_forward=op.work.traffic_bytes_per_forward * share.parameters,
        saved_bytes_per_sample=op.work.saved_bytes_per_sample * share.saved,
        saved_bytes_per_forward=op.work.saved_bytes_per_forward * share.parameters,
    )
    return replace(op, parameter_bytes=op.parameter_bytes * share.parameters, work=work, shards=None)
