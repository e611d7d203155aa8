"""Prove without a search that a problem does not fit in memory."""

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem


def too_large(problem: Problem, micro_batch: int = 0) -> bool:
    """Return whether no plan fits, because what every plan holds needs more memory than the devices have.

    Some device holds the largest operator. Replicas that shard the optimizer's state do not divide the parameters of
    one operator, so they hold it whole too. All devices together hold every operator at least once, and what it saves
    for one micro-batch, unless stages recompute. What stages receive is not counted, so False does not mean that a plan
    fits.

    Args:
        problem: parameters, gradients and optimizer state of its operators are counted.
        micro_batch: samples that every stage has in flight at least; 0 counts nothing that is saved.
    """
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    memory = [problem.cluster.type_of(device).memory_bytes for device in range(len(problem.cluster.devices))]
    whole = costs.op_bytes.least_state
    held = costs.op_bytes.least_held(len(memory)) if problem.state == "all" else whole
    saves = micro_batch > 0 and problem.recompute == "none"
    saved = costs.op_bytes.saved_of(float(micro_batch)) * micro_batch if saves else 0.0
    return float(held.max()) > max(memory) or float((whole + saved).sum()) > sum(memory)
