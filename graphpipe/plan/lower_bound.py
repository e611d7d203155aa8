"""A proven lower bound on the step time of every plan of a problem, and how far a plan is from it."""

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.plan.bounds import bottleneck_seconds
from graphpipe.plan.partition import Problem
from graphpipe.plan.plan import Plan, Prediction


def bottleneck_bound(problem: Problem) -> float:
    """Return seconds per mini-batch below which the slowest device of no plan can be.

    The largest of

    - work: every operator's device-seconds for the mini-batch, at the batch size where it is most efficient, and the
      optimizer's, shared evenly by all devices;
    - the largest operator: it is in one stage, on the number of devices that is best for it alone, which synchronise
      its gradient over the fastest link there is and each update it.

    An operator's time per sample falls with the samples, so the device-seconds of a mini-batch are least when one
    device computes it whole; its seconds on d devices are least when each computes its share at once.
    """
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    devices, batch = len(problem.cluster.devices), problem.batch_size
    update = costs.optimizer_seconds(op.name for op in problem.graph.ops)
    whole = _fastest(problem, costs, batch)
    return max((float(whole.sum()) + update) / devices, float(_least_alone(problem, costs).max()))


def _least_alone(problem: Problem, costs: CostModel) -> NDArray[np.float64]:
    """Seconds per mini-batch of every operator's device if it had a stage of its own, of the best degree."""
    cluster = problem.cluster
    links = [cluster.intra_node, cluster.inter_node, *(pair.link for pair in cluster.pair_links)]
    bandwidth = max(link.bandwidth_bytes_per_second for link in links)
    update = costs.trainable_bytes * problem.costs.optimizer_seconds_per_parameter_byte
    least = np.full(len(problem.graph.ops), np.inf)
    for degree in range(1, min(len(cluster.devices), problem.batch_size) + 1):
        reduced = 2 * (degree - 1) / degree * costs.trainable_bytes / bandwidth
        least = np.minimum(least, _fastest(problem, costs, problem.batch_size / degree) + reduced + update)
    return least


def step_bound(problem: Problem) -> float:
    """Return seconds below which the step of no synchronous plan can be.

    The bottleneck bound, or the critical path: at least one sample goes forwards and backwards through the longest
    chain of operators, each of which takes at least its time for one sample, or less where curves allow a share of one.
    """
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    share = min(1.0, problem.batch_size / len(problem.cluster.devices))
    seconds = dict(zip((op.name for op in problem.graph.ops), _fastest(problem, costs, share), strict=True))
    longest: dict[str, float] = {}
    for name in problem.graph.order:
        before = max((longest[other] for other in problem.graph.predecessors[name]), default=0.0)
        longest[name] = before + float(seconds[name])
    return max(bottleneck_bound(problem), *longest.values())


def gap_percent(plan: Plan, prediction: Prediction) -> float:
    """Return by how many percent a plan's predicted step exceeds the bound; 0 is proven best."""
    bound = step_bound(Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size))
    return 100.0 * (prediction.step_seconds / bound - 1.0) if bound else 0.0


def bottleneck_gap_percent(plan: Plan) -> float:
    """Return by how many percent the slowest device of a plan exceeds the bound."""
    bound = bottleneck_bound(Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size))
    return 100.0 * (plan.batch_size * bottleneck_seconds(plan) / bound - 1.0) if bound else 0.0


def _fastest(problem: Problem, costs: CostModel, samples: float) -> NDArray[np.float64]:
    """Seconds, forward and backward, of every operator on its fastest device type."""
    types = sorted({device.type for device in problem.cluster.devices})
    return np.min([np.sum(costs.seconds(kind, samples), axis=0) for kind in types], axis=0)
