"""EdgePipe's dynamic programme: which interval of the operators each device computes, if devices are unequal.

References:
    Hu et al.: EdgePipe: tailoring pipeline parallelism with deep neural networks for volatile edge networks. 2021.
    Hu et al.: PipeEdge: pipeline parallelism for large-scale model inference on heterogeneous edge devices. DSD 2022,
    section IV.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Stage = tuple[int, int, int]
"""First operator, the one after the last, and the kind of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProblem:
    """The input of the dynamic programme, for L operators in order and K kinds of devices."""

    seconds: Sequence[Array]
    """[kinds, L + 1, L + 1]: seconds of the interval [i, j) on such a device; infinite where it does not fit in
    memory."""
    messages: Array
    """[kinds, kinds, L + 1]: seconds of the message at a cut, by the kinds of its sender and receiver."""
    counts: Sequence[int]
    """Number of devices of each kind."""


def fewest_seconds(problem: ChainProblem, add: Callable[[Array, Array], Array]) -> tuple[float, list[Stage]] | None:
    """Return the least cost of a chain of stages, and its stages; None if nothing fits. Devices may stay unused.

    h[S, u, j] is the least cost of the first j operators on devices S (their number, by kind), if the next stage is on
    a device of kind u:

        h[S + u, v, j] = min over i < j of  h[S, u, i] + seconds[u, i, j] + messages[u, v, j]

    The last stage sends nothing. Of equal costs, fewer devices are better. O(L^2 K^2 prod(n_k + 1)).

    Args:
        problem: the costs.
        add: `numpy.maximum` for the slowest stage or message, as published; `numpy.add` for the sum of all of them.
    """
    kinds, size = len(problem.counts), problem.messages.shape[2]
    steps = [int(np.prod([count + 1 for count in problem.counts[:kind]])) for kind in range(kinds)]
    subsets = int(np.prod([count + 1 for count in problem.counts]))
    least = np.full((subsets, kinds, size), inf)
    # Where the last stage before this state begins, and its kind.
    begins = np.zeros((subsets, kinds, size), dtype=np.int32)
    by = np.zeros((subsets, kinds, size), dtype=np.int32)
    least[0, :, 0] = 0.0
    answers: list[tuple[float, int, int, int, int]] = []
    for subset in range(subsets):  # Adding a device makes the number larger, so every state is complete here.
        used = [subset // step % (count + 1) for step, count in zip(steps, problem.counts, strict=True)]
        for kind in (kind for kind in range(kinds) if used[kind] < problem.counts[kind]):
            before = least[subset, kind]
            if np.isinf(before).all():
                continue
            costs = add(before[:, None], problem.seconds[kind])
            first = costs.argmin(axis=0)
            best = costs[first, np.arange(size)]
            if best[-1] < inf:
                answers.append((float(best[-1]), sum(used), subset, kind, int(first[-1])))
            after, used_after = subset + steps[kind], [count + (n == kind) for n, count in enumerate(used)]
            for other in (other for other in range(kinds) if used_after[other] < problem.counts[other]):
                sent = add(best, problem.messages[kind, other])
                better = sent < least[after, other]
                least[after, other][better] = sent[better]
                begins[after, other][better] = first[better]
                by[after, other][better] = kind
    if not answers:
        return None
    cost, _, subset, kind, first = min(answers)
    stages = [(first, size - 1, kind)]
    while first:
        earlier = int(by[subset, kind, first])
        start = int(begins[subset, kind, first])
        stages.append((start, first, earlier))
        subset, kind, first = subset - steps[earlier], earlier, start
    return cost, stages[::-1]
