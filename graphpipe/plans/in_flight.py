"""How many samples each stage keeps in flight, and what follows from it: its delay, and its versions of weights.

Planners use these functions for stages that are not in a plan yet, also for arrays of them.
"""

from collections.abc import Sequence
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from graphpipe.plans.sharding import rounded_up
from graphpipe.plans.stage import Predictor, WeightPolicy

Count = TypeVar("Count", int, NDArray[np.float64])
"""A number of one stage, or those of many."""


def in_flight_samples(
    batch_size: float, micro_batches: Sequence[int], bursts: Sequence[int], successors: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return the samples in flight of every stage under 1F1B. Stages are given in topological order.

    Algorithm 2 (GraphPipe, section 6) visits the last stages first. A sink holds one burst. Any other stage must have
    forwarded one burst more than its successor with the most samples in flight, before that successor's first backward
    can reach it:

        in_flight(x) = max over successors y of in_flight(y) + max(k_x b_x, k_y b_y)

    The result is at most the mini-batch (infinite if the pipeline never drains), and rounded up to whole micro-batches
    of x.

        b = 1 -> 2 -> 4 (figure 5):      4 + 4 = 8 <- 4 ... the sink holds 4, its producer 8, the source 10
    """
    samples = [0] * len(micro_batches)
    for stage in reversed(range(len(micro_batches))):
        need = own = micro_batches[stage] * bursts[stage]
        for after in successors[stage]:
            need = max(need, samples[after] + max(own, micro_batches[after] * bursts[after]))
        samples[stage] = int(-(-min(need, batch_size) // micro_batches[stage])) * micro_batches[stage]
    return tuple(samples)


def forward_in_flight(
    batch_size: int, micro_batches: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the samples in flight of every stage of a plan that does not train. Stages are in topological order.

    Between two stages that follow each other, one micro-batch is computed, one is sent, and one waits to be read. An
    edge that passes over other stages holds one more micro-batch for each of them. A stage has the samples that its
    largest edge needs, at most the mini-batch, rounded up to whole micro-batches.
    """
    level = [0] * len(micro_batches)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        level[target] = max(level[target], level[source] + 1)
    samples = list(micro_batches)
    for source, target in edges:
        need = (level[target] - level[source] + 2) * max(micro_batches[source], micro_batches[target])
        for end in (source, target):
            samples[end] = max(samples[end], need)
    return tuple(rounded_up(min(need, batch_size), size) for need, size in zip(samples, micro_batches, strict=True))


def delay_of(weights: WeightPolicy, in_flight: Count, micro_batch: Count, batch_size: int) -> Count:
    """Return the most updates between the weights that a micro-batch reads and those that its gradient changes.

    With w micro-batches ahead of the first backward and m micro-batches in a mini-batch, a forward misses the updates
    of at most ceil(w / m) mini-batches before its own.

    Args:
        weights: the policy. Under `vertical-sync` every stage is as late as the latest, so this is a lower bound.
        in_flight: samples of a stage, whole micro-batches.
        micro_batch: samples.
        batch_size: samples of a mini-batch.
    """
    if weights in ("flush", "double-buffer"):
        return 0 * in_flight + (weights == "double-buffer")
    return -((micro_batch - in_flight) // batch_size)


def versions_of(weights: WeightPolicy, predictor: Predictor, delay: Count) -> Count:
    """Return the most versions of the weights of a stage with this delay that a device holds at once.

    A stage that predicts needs a copy to return to. SpecTrain predicts for the backward too, so that only the first
    stages and the last one may need less than this. A moving average is as large as a version, and so is the copy to
    return to after a backward.
    """
    if weights == "moving-average":
        return 0 * delay + 1 + 2 * (delay > 0)
    if weights != "predict":
        return 1 + delay
    return 0 * delay + 1 + ((delay > 0) | (predictor == "spectrain"))


def most_in_flight_of(weights: WeightPolicy, batch_size: int, micro_batch: int) -> float:
    """Return the most samples that a stage may keep in flight.

    Without a flush, they may be more than a mini-batch. With a double buffer, they are at most one micro-batch more:
    otherwise a mini-batch would begin before the version exists that it reads.
    """
    if weights == "double-buffer":
        return batch_size + micro_batch
    return rounded_up(batch_size, micro_batch) if weights == "flush" else inf
