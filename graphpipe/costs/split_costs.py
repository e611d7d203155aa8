"""The costs of a graph of which an operator was split after its costs were found."""

from collections.abc import Iterator
from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.costs.sample_load import SampleLoad
from graphpipe.graph import Graph, OpSplit, with_split


def split_costs(costs: CostTable, graph: Graph, split: OpSplit, cluster: Cluster) -> CostTable:
    """Return the costs of a graph with one more operator split.

    If the operator's costs were estimated, those of its parts and of the sum are estimated too. If they were measured,
    each takes the share of the measured costs that it has of the operator's FLOPs. A sum without FLOPs is estimated.

    Args:
        costs: of the graph before.
        graph: before.
        split: of one of its operators.
        cluster: its device types are those of the rows.
    """
    after = with_split(graph, split)
    return replace(
        costs,
        graph_fingerprint=after.fingerprint,
        rows=tuple(_rows(costs, graph, after, split, cluster)),
        loads=tuple(_load(load, split) for load in costs.loads),
    )


def _rows(costs: CostTable, before: Graph, after: Graph, split: OpSplit, cluster: Cluster) -> Iterator[OpCost]:
    estimated = estimate(after, cluster).by_op
    new = {split.op, *split.parts}
    flops = before[split.op].work.flops_per_sample
    for kind in cluster.device_types:
        whole = costs.by_op[split.op, kind.name]
        for op in after.ops:
            row = estimated[op.name, kind.name]
            if op.name not in new:
                yield costs.by_op[op.name, kind.name]
            elif whole.source == "analytic" or not op.work.flops_per_sample:
                yield row
            else:
                share = op.work.flops_per_sample / flops
                yield _share(whole, op.name, share, needs_input=op.name in after.returning)


def _share(whole: OpCost, op: str, share: float, *, needs_input: bool) -> OpCost:
    held = whole.temporaries
    part = whole.times(share)
    return replace(
        part,
        op=op,
        shared=(),
        saved=None,
        between_halves=None,
        input_gradient=part.input_gradient if needs_input else Curve(),
        halves=part.halves and (part.halves if needs_input else replace(part.halves, input=Curve())),
        temporaries=held and held.times(share),
    )


def _load(load: SampleLoad, split: OpSplit) -> SampleLoad:
    return replace(load, ops=(*load.ops, *split.parts)) if split.op in load.ops else load
