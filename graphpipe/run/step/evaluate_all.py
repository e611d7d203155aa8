"""Evaluates a whole data set, mini-batch by mini-batch."""

from collections.abc import Callable, Iterable
from typing import Any

from graphpipe.run.stage.shares.batch_share import GivenBatch
from graphpipe.run.step.evaluation import Evaluated

EachBatch = Callable[[Any, Any], None]
"""Takes the outputs and the targets of a mini-batch."""


def evaluate_all(
    batches: Iterable[GivenBatch], evaluate: Callable[[GivenBatch, bool], Evaluated], each: EachBatch | None
) -> float | None:
    """Evaluate mini-batches one after the other; every rank must call this.

    Args:
        batches: of any sizes.
        evaluate: evaluates a mini-batch. Its second argument says whether outputs are wanted.
        each: called with outputs and targets of each mini-batch. None: they are not gathered.

    Returns:
        The mean loss over all samples, by the weights that the loss gives them. None if a mini-batch has no loss, or
        none has a weight.
    """
    total = weight = 0.0
    complete = True
    for given in batches:
        found = evaluate(given, each is not None)
        if each is not None:
            each(found.outputs, found.targets)
        if found.loss is None:
            complete = False
        elif found.weight:
            total += found.loss * found.weight
            weight += found.weight
    return total / weight if complete and weight else None
