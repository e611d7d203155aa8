"""Prove without a search that a problem's parameters do not fit in memory."""

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem


def too_large(problem: Problem) -> bool:
    """Return whether no plan fits, because parameters, gradients and optimizer state alone need more memory.

    Some device holds the largest operator. Replicas that shard the optimizer's state do not divide the parameters of
    one operator, so they hold it whole too. All devices together hold every operator at least once. What stages save
    and receive is not counted, so False does not mean that a plan fits.
    """
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    memory = [problem.cluster.type_of(device).memory_bytes for device in range(len(problem.cluster.devices))]
    whole = costs.op_bytes.least_state
    each = costs.op_bytes.least_held(len(memory)) if problem.state == "all" else whole
    return float(each.max()) > max(memory) or float(whole.sum()) > sum(memory)
