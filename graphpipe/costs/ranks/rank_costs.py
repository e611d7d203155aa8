"""The look-up of costs for stages whose replicas are shared by several devices."""

from graphpipe.cluster.ring import Ring
from graphpipe.costs.cost_model import CostModel
from graphpipe.costs.ranks.rank_graph import rank_graph
from graphpipe.costs.ranks.rank_table import rank_table

_MESSAGE = 2.0**20
"""Bytes of the all-reduce by which the slowest of several rings is chosen."""


def slowest_ring(model: CostModel, replicas: tuple[tuple[int, ...], ...]) -> Ring:
    """Return the ring over the devices of the replica whose links are slowest."""
    return max((model.ring(devices) for devices in replicas), key=lambda ring: ring.reduce_seconds(_MESSAGE))


def rank_costs(model: CostModel, replicas: tuple[tuple[int, ...], ...]) -> CostModel:
    """Return the costs of each device if the devices of a replica share it, with their all-reduces.

    Args:
        model: the costs of whole operators.
        replicas: the devices of each replica, equally many. The slowest ring of devices counts for all. With one device
            each, the costs are those of whole operators.
    """
    if len(replicas[0]) == 1:
        return model
    ring = slowest_ring(model, replicas)

    def made() -> CostModel:
        part = rank_graph(model.graph, ring.degree)
        return CostModel(part, rank_table(model.table, model.graph, part, ring), model.cluster, model.trains)

    return model.op_bytes.once(("ranks", ring), made)
