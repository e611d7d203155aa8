"""A proven lower bound on the step time of every plan of a problem, and how far a plan is from it."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.lower_bound.area_bound import device_seconds_bound
from graphpipe.planners.lower_bound.configuration_lp import packing_bound
from graphpipe.planners.lower_bound.device_loads import any_stages, one_stage_each
from graphpipe.planners.lower_bound.op_minima import LeastSeconds
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.whole_batch_tail import whole_batch_tail
from graphpipe.plans.estimates import bottleneck_seconds
from graphpipe.plans.plan import Plan, Prediction, Stage


def bottleneck_bound(
    problem: Problem,
    *,
    sizes: Collection[int] | None = None,
    shared: bool = True,
    hidden: Collection[str] = (),
    effort: float = 1.0,
) -> float:
    """Return seconds per mini-batch below which the slowest device of no plan can be; infinite if no plan fits.

    Each relaxation drops more of what a plan must be than the next, and is where the next one starts:

    - the largest operator: it is in one stage, of the degree that is best for it alone;
    - work: device-seconds, where an operator may only have a degree at which it is fast enough alone (a higher one
      takes more of them), and bytes where they are short (see `device_seconds`);
    - packing: what fits on one device at once (see `packing`).

    Transfers, the latency of messages, and activations beyond one micro-batch are left out of all of them.

    Args:
        problem: graph, costs, cluster and batch.
        sizes: micro-batch sizes that stages may have; None: all. What follows a whole-batch operator may always have
            the mini-batch.
        shared: True for every plan. False for those in which a device runs one stage only, but for stages of
            whole-batch operators and what follows them: such are all that the planners make.
        hidden: operators whose all-reduce is not to be counted (see `step_bound`); the objective counts all.
        effort: how long to pack; 1 ends within half a second.
    """
    if shared and sizes is not None and any(op.whole_batch for op in problem.graph.ops):
        sizes = {*sizes, problem.batch_size}
    least = LeastSeconds.of(problem, sizes, hidden=hidden)
    work = device_seconds_bound(problem, least)
    if not 0 < work < np.inf:
        return work + least.overhead_seconds
    packing = any_stages(problem, least) if shared else one_stage_each(problem, least)
    return packing_bound(packing, work, effort) + least.overhead_seconds


def step_bound(problem: Problem, *, shared: bool = True) -> float:
    """Return seconds below which the step of no synchronous plan can be.

    The bottleneck bound, or for any operator: the forwards of one sample on the longest way to it, then its own work
    on the mini-batch, the input gradients on the longest way back beginning where its last is ready. Operators of its
    own stage on that way take their time on the same devices besides its work, those of other stages before and after.

    Where communication overlaps computation, a device of several stages reduces the gradients of one while it computes
    for another, so that the all-reduce of a stage that shares its devices counts nothing.

    Args:
        problem: graph, costs, cluster and batch.
        shared: as for `bottleneck_bound`.
    """
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    forward, input_gradient, weight_gradient = _least_passes(problem, costs, 1.0)
    until_last, work = np.full(len(forward), np.inf), np.full(len(forward), np.inf)
    batch = problem.batch_size
    for degree in range(1, min(len(problem.cluster.devices), batch) + 1):
        if batch % degree == 0:
            passes = _least_passes(problem, costs, batch / degree)
            until_last = np.minimum(until_last, passes[0] + passes[1])
            work = np.minimum(work, np.sum(passes, axis=0))
    del weight_gradient
    before, after = _longest_before(problem, forward), _longest_before(problem, input_gradient)
    path = float(np.max(before + np.maximum(work, until_last + after)))
    hidden: Collection[str] = ()
    if problem.cluster.overlap:
        hidden = problem.graph.index.keys() if shared else whole_batch_tail(problem.graph)
    return max(bottleneck_bound(problem, shared=shared, hidden=hidden), path)


def _least_passes(problem: Problem, costs: CostModel, samples: float) -> list[NDArray[np.float64]]:
    """Return the seconds of every operator's three passes, each on its fastest device type."""
    kinds = sorted({device.type for device in problem.cluster.devices})
    return [np.min([costs.seconds(kind, samples)[number] for kind in kinds], axis=0) for number in range(3)]


def _longest_before(problem: Problem, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for every operator the seconds of the longest path that ends at a predecessor."""
    index = problem.graph.index
    before = np.zeros(len(seconds))
    for name in problem.graph.order:
        others = (index[other] for other in problem.graph.predecessors[name])
        before[index[name]] = max((before[other] + seconds[other] for other in others), default=0.0)
    return before


def gap_percent(plan: Plan, prediction: Prediction) -> float:
    """Return by how many percent a plan's predicted step exceeds the bound; 0 is proven best.

    The bound is that of all plans that share devices among stages, where this one does, and of those that do not
    where it does not.
    """
    bound = step_bound(_problem(plan), shared=_shares(plan))
    return 100.0 * (prediction.step_seconds / bound - 1.0) if bound else 0.0


def bottleneck_gap_percent(plan: Plan) -> float:
    """Return by how many percent the slowest device of a plan exceeds the bound for its micro-batch sizes.

    Plans that share devices are compared with such, as in `gap_percent`. A larger micro-batch is always more efficient,
    and takes longer to fill and drain: sizes are for the step time to choose.
    """
    sizes = {stage.micro_batch for stage in _own_stages(plan)} or {plan.batch_size}
    bound = bottleneck_bound(_problem(plan), sizes=sizes, shared=_shares(plan))
    return 100.0 * (plan.batch_size * bottleneck_seconds(plan) / bound - 1.0) if bound else 0.0


def _problem(plan: Plan) -> Problem:
    return Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)


def _own_stages(plan: Plan) -> list[Stage]:
    """Return the stages that are not of whole-batch operators and what follows them: these share devices anyway."""
    tail = whole_batch_tail(plan.graph)
    return [stage for stage in plan.stages if not tail.issuperset(stage.ops)]


def _shares(plan: Plan) -> bool:
    devices = [device for stage in _own_stages(plan) for device in stage.devices]
    return len(devices) > len(set(devices))
