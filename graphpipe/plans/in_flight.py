"""How many samples each stage keeps in flight under 1F1B on a graph of stages (GraphPipe, section 6, Algorithm 2)."""

from collections.abc import Sequence


def in_flight_samples(
    batch_size: float, micro_batches: Sequence[int], bursts: Sequence[int], successors: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return the samples in flight of every stage. Stages are given in topological order.

    Algorithm 2 visits the last stages first. A sink holds one burst. Any other stage must have forwarded one burst more
    than its successor with the most samples in flight, before that successor's first backward can reach it:

        in_flight(x) = max over successors y of in_flight(y) + max(k_x b_x, k_y b_y)

    The result is rounded up to whole micro-batches of x, and is at most the mini-batch (infinite if the pipeline never
    drains).

        b = 1 -> 2 -> 4 (figure 5):      4 + 4 = 8 <- 4 ... the sink holds 4, its producer 8, the source 10
    """
    found = [0] * len(micro_batches)
    for stage in reversed(range(len(micro_batches))):
        own = micro_batches[stage] * bursts[stage]
        need = max(
            (found[after] + max(own, micro_batches[after] * bursts[after]) for after in successors[stage]),
            default=own,
        )
        whole = -(-need // micro_batches[stage]) * micro_batches[stage]
        found[stage] = int(min(whole, batch_size))
    return tuple(found)


def forward_in_flight(
    batch_size: int, micro_batches: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the samples in flight of every stage of a plan that does not train. Stages are in topological order.

    Between two stages that follow each other, one micro-batch is computed, one is sent, and one waits to be read. An
    edge that passes over other stages holds one more micro-batch for each of them. A stage has the samples that its
    largest edge needs, rounded up to whole micro-batches, and at most the mini-batch.
    """
    level = [0] * len(micro_batches)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        level[target] = max(level[target], level[source] + 1)
    found = list(micro_batches)
    for source, target in edges:
        need = (level[target] - level[source] + 2) * max(micro_batches[source], micro_batches[target])
        for end in (source, target):
            found[end] = max(found[end], need)
    return tuple(min(-(-need // size) * size, batch_size) for need, size in zip(found, micro_batches, strict=True))
