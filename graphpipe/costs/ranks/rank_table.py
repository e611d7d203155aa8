"""The costs that each of the ranks of a replica has, its collectives included."""

from dataclasses import replace

from graphpipe.cluster.ring import Ring
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, Halves, OpCost
from graphpipe.costs.ranks.rank_graph import RankShares
from graphpipe.graph import Graph, Op

Line = tuple[float, float]


def rank_table(table: CostTable, graph: Graph, part: Graph, ring: Ring) -> CostTable:
    """Return the costs of each rank: work that is shared out, and the all-reduces between the ranks.

        forward of n samples    fixed + n * slope * (1 - f (1 - 1/t)) + 2(t-1) (R * latency + n * bytes / t / bandwidth)

    The fixed part of a curve (launches, and what it takes until a device is well filled) stays: smaller products are
    less efficient. f is the part of the operator's work that t ranks share: of its FLOPs, and for the line of an
    estimate that memory bounds, of its traffic. R all-reduces follow each other.

    Where the costs of t ranks were measured, these stand in place of the first two terms. Where those of fewer ranks
    were, they are scaled by the work that t ranks have, relative to theirs.

    Args:
        table: of the whole operators.
        graph: of the whole operators.
        part: of what a rank holds (`rank_graph`).
        ring: of the ranks of a replica.
    """
    return replace(
        table,
        graph_fingerprint=part.fingerprint,
        rows=tuple(_rank_row(row, graph, ring) for row in table.rows),
    )


def _rank_row(row: OpCost, graph: Graph, ring: Ring) -> OpCost:
    op = graph[row.op]
    if op.shards is None:
        return row
    shards, row = op.shards.figures(ring.degree), row.of_ranks(ring.degree)
    share = RankShares.of(graph, op, ring.degree).over(RankShares.of(graph, op, row.ranks or 1))
    forward = ring.reduce_line(shards.forward_reductions, shards.forward_bytes_per_sample)
    backward = ring.reduce_line(shards.backward_reductions, shards.backward_bytes_per_sample)

    def shared(curve: Curve) -> Curve:
        return _times(curve, _line_shares(op, row, share, len(curve.lines)))

    inputs, returns = shared(row.input_gradient), op.name in graph.returning
    halves = row.halves
    if halves is not None:
        first = shared(halves.input)
        halves = Halves(input=_plus(first, backward) if returns else first, weight=shared(halves.weight))
    exchanged = shards.exchange_bytes(ring.degree)
    held, loss = row.temporaries, 1 / ring.degree if shards.divides_logits else 1.0
    return replace(
        row,
        ranks=None,
        shared=(),
        forward=_plus(shared(row.forward), forward),
        input_gradient=_plus(inputs, backward) if returns else inputs,
        weight_gradient=shared(row.weight_gradient),
        halves=halves,
        temporaries=held
        and replace(
            held,
            forward=_bytes(held.forward, share, exchanged[0]),
            backward=_bytes(held.backward, share, exchanged[1]),
            loss_bytes_per_sample=held.loss_bytes_per_sample * loss,
        ),
    )


def _line_shares(op: Op, row: OpCost, share: RankShares, lines: int) -> list[float]:
    """Return the share of the slope of each line: of an estimate, the last line is what memory bounds."""
    work = op.work
    whole = share.flops if work.flops_per_sample else share.traffic
    if row.source != "analytic" or not lines:
        return [whole] * lines
    return [*[share.flops] * (lines - 1), share.traffic]


def _times(curve: Curve, shares: list[float]) -> Curve:
    pairs = zip(curve.lines, shares, strict=True)
    return Curve(lines=tuple((fixed, slope * share) for (fixed, slope), share in pairs))


def _plus(curve: Curve, line: Line) -> Curve:
    if line == (0.0, 0.0):
        return curve
    return Curve(lines=tuple((fixed + line[0], slope + line[1]) for fixed, slope in curve.lines or ((0.0, 0.0),)))


def _bytes(curve: Curve, share: RankShares, exchanged: float) -> Curve:
    # What does not depend on the samples is mostly gradients of parameters.
    lines = ((fixed * share.parameters, slope * share.saved + exchanged) for fixed, slope in curve.lines or ((0, 0),))
    return Curve(lines=tuple(lines)) if curve.lines or exchanged else curve
