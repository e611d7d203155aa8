"""What the ranks of a replica gain and lose: the work that none of them is spared, and the sums between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.costs.cost_model import CostModel
from graphpipe.costs.ranks.rank_costs import rank_costs, slowest_ring
from graphpipe.costs.ranks.rank_table import line_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """Seconds of a forward and a backward of one micro-batch at a stage, on each device."""

    total: float
    whole: float
    """Of operators without a layout, which every device computes whole."""
    sums: float
    """Of what the devices of a replica exchange."""
    alone: float
    """What one device would take that computes the replica alone."""


def shared_work(
    model: CostModel, ops: Sequence[str], replicas: tuple[tuple[int, ...], ...], samples: float
) -> SharedWork:
    """Return how several devices share a stage.

    Args:
        model: the costs of whole operators.
        ops: of the stage.
        replicas: the devices of each replica.
        samples: of one micro-batch on one replica.
    """
    graph, device, ring = model.graph, replicas[0][0], slowest_ring(model, replicas)
    without = tuple(op for op in ops if graph[op].shards is None)
    ranks = rank_costs(model, replicas)
    sums = sum(ranks.end_seconds(ops, samples))
    for op in ops:
        if (shards := graph[op].shards) is not None:
            figures = shards.figures_of(ring.degree)
            passes = [figures.forward, *([figures.weights] if model.trains else [])]
            passes += [figures.backward] if model.trains and op in graph.returning else []
            sums += sum(fixed + slope * samples for fixed, slope in (line_of(ring, each) for each in passes))

    def seconds(costs: CostModel, names: Sequence[str]) -> float:
        task = costs.task_seconds(names, device, samples)
        return task.forward + task.backward

    return SharedWork(
        total=seconds(ranks, ops),
        whole=seconds(ranks, without) if without else 0.0,
        sums=sums,
        alone=seconds(model, ops),
    )
