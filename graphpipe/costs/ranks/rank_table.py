"""The costs that each of the ranks of a replica has, its collectives included."""

from dataclasses import replace

from graphpipe.cluster.ring import Ring
from graphpipe.cluster.ring_exchanges import RingExchanges
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, Halves, OpCost
from graphpipe.costs.ranks.rank_graph import RankShares
from graphpipe.graph import Graph, Op
from graphpipe.graph.op_shards import Exchanges, SequenceShards

Line = tuple[float, float]


def rank_table(table: CostTable, graph: Graph, part: Graph, ring: Ring) -> CostTable:
    """Return the costs of each rank: work that is shared out, and the all-reduces between the ranks.

        forward of n samples    fixed + n * slope * (1 - f (1 - 1/t)) + 2(t-1) (R * latency + n * bytes / t / bandwidth)

    B bytes are summed besides in some operators, which do not depend on the samples, such as gradients of parameters of
    which each rank sees a part. What stages gather where they begin and end is in `exchanges`.

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
        exchanges=_exchanges(graph, ring),
    )


def _exchanges(graph: Graph, ring: Ring) -> RingExchanges | None:
    dividing: dict[str, SequenceShards] = {}
    for op in graph.ops:
        if op.shards is not None and op.shards.sequence is not None and op.shards.divides_sequence(ring.degree):
            dividing[op.name] = op.shards.sequence
    if not dividing:
        return None
    return RingExchanges(
        ring=ring,
        returned=frozenset((op, name) for op, sequence in dividing.items() for name in sequence.returned),
        taken=frozenset(
            (op, value)
            for op, sequence in dividing.items()
            for value in sequence.taken
            if value not in graph.one_way  # which has no gradient
        ),
        summed=tuple((op, sequence.summed_bytes) for op, sequence in dividing.items()),
    )


def _rank_row(row: OpCost, graph: Graph, ring: Ring) -> OpCost:
    # What was measured for compiled stages does not hold: no devices share a replica of one.
    op, row = graph[row.op], replace(row, saved=None, between_halves=None)
    if op.shards is None:
        return row
    shards, row = op.shards, row.of_ranks(ring.degree)
    share = RankShares.of(graph, op, ring.degree).over(RankShares.of(graph, op, row.ranks or 1))
    figures = shards.figures_of(ring.degree)
    forward, backward, weights = (line_of(ring, each) for each in (figures.forward, figures.backward, figures.weights))

    def shared(curve: Curve) -> Curve:
        return _times(curve, _line_shares(op, row, share, len(curve.lines)))

    inputs, returns = shared(row.input_gradient), op.name in graph.returning
    halves = row.halves
    if halves is not None:
        first, second = shared(halves.input), _plus(shared(halves.weight), weights)
        halves = Halves(input=_plus(first, backward) if returns else first, weight=second)
    exchanged = shards.exchange_bytes(ring.degree)
    held, loss = row.temporaries, 1 / ring.degree if shards.divides_logits else 1.0
    return replace(
        row,
        ranks=None,
        shared=(),
        forward=_plus(shared(row.forward), forward),
        input_gradient=_plus(inputs, backward) if returns else inputs,
        weight_gradient=_plus(shared(row.weight_gradient), weights),
        halves=halves,
        temporaries=held
        and replace(
            held,
            forward=_bytes(held.forward, share, exchanged[0]),
            backward=_bytes(held.backward, share, exchanged[1]),
            input_half=held.input_half and _bytes(held.input_half, share, exchanged[1]),
            weight_half=held.weight_half and _bytes(held.weight_half, share, 0.0),
            held_gradients=None,
            loss_bytes_per_sample=held.loss_bytes_per_sample * loss,
        ),
    )


def line_of(ring: Ring, exchanges: Exchanges) -> Line:
    """Return the seconds of exchanges: fixed ones, and those of each sample."""
    return ring.reduce_line(exchanges.reductions, exchanges.bytes_per_sample, exchanges.bytes)


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
