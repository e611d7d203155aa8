"""A proven lower bound on the step time of every plan of a problem, and the gap of a plan to it."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.lower_bound.area_bound import device_seconds_bound
from graphpipe.planners.lower_bound.configuration_lp import packing_bound
from graphpipe.planners.lower_bound.device_loads import any_stages, one_stage_each
from graphpipe.planners.lower_bound.op_minima import OpMinima
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device, own_stages
from graphpipe.plans.estimates import bottleneck_seconds, step_overhead_seconds
from graphpipe.plans.plan import Plan
from graphpipe.plans.prediction import Prediction


def bottleneck_bound(
    problem: Problem,
    *,
    sizes: Collection[int] | None = None,
    shared: bool = True,
    hidden: Collection[str] = (),
    sharded: bool = False,
    effort: float = 1.0,
) -> float:
    """Return a lower bound on the seconds per mini-batch of the slowest device of any plan; infinite if nothing fits.

    There are three relaxations, from the loosest to the tightest. Each one starts from the bound of the previous one.

    - The largest operator: it is in one stage, of the degree that is best for it.
    - Work: device-seconds, where each operator only has degrees at which it is fast enough (a higher degree takes
      more device-seconds), and bytes if memory is short (see `area_bound`).
    - Packing: the loads that fit on one device at once (see `configuration_lp`).

    All of them ignore transfers, the latency of messages, and activations beyond one micro-batch.

    Args:
        problem: graph, costs, cluster and batch.
        sizes: micro-batch sizes that stages may have; None: all. The whole-batch tail may always have the mini-batch.
        shared: True for every plan. False for plans in which each device runs one stage and possibly stages of the
            whole-batch tail.
        hidden: operators whose all-reduce does not count (see `step_bound`); the objective counts all.
        sharded: True for every plan. False for plans whose replicas hold their whole state.
        effort: time limit of the packing; 1 ends within half a second.
    """
    if shared and sizes is not None and any(op.whole_batch for op in problem.graph.ops):
        sizes = {*sizes, problem.batch_size}
    least = OpMinima.of(problem, sizes, hidden=hidden, sharded=sharded)
    work = device_seconds_bound(problem, least)
    if not 0 < work < np.inf:
        return work + least.overhead_seconds
    packing = any_stages(problem, least) if shared else one_stage_each(problem, least)
    return packing_bound(packing, work, effort) + least.overhead_seconds


def step_bound(problem: Problem, *, shared: bool = True, sharded: bool = False) -> float:
    """Return a lower bound on the step seconds of every synchronous plan whose micro-batches divide the mini-batch.

    It is the larger of the bottleneck bound and a path bound. The path bound of an operator adds the forwards of one
    sample on the longest path to it, its own work on the mini-batch, and the input gradients on the longest path back.
    The way back may begin once the operator's last input gradient is ready. Operators of the same stage on the path use
    the same devices in addition to its work. Operators of other stages run before or after it.

    If communication overlaps computation, a device with several stages can reduce the gradients of one stage while it
    computes for another. The all-reduce of a stage that shares its devices then does not count.

    Args:
        problem: graph, costs, cluster and batch.
        shared: as for `bottleneck_bound`.
        sharded: as for `bottleneck_bound`.
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
        hidden = problem.graph.index.keys() if shared else problem.graph.whole_batch_tail
    return max(bottleneck_bound(problem, shared=shared, hidden=hidden, sharded=sharded), path)


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
    """Return by how many percent a plan's predicted step exceeds the bound; 0: no plan that it covers is faster.

    If the plan shares devices among stages, the bound covers plans that share them and plans that do not; otherwise
    only plans that do not share them. It covers plans whose replicas shard their state only if those of the plan do
    (`plans_of_gap`). All of them split the same operators. No plan that it covers has replicas that several devices
    share, or a short last micro-batch, so one that has them may be faster than the bound: then the result is negative.
    """
    bound = step_bound(_problem(plan), shared=most_stages_per_device(plan) > 1, sharded=plan.shards_state)
    bound += step_overhead_seconds(plan)  # which every plan has
    return 100.0 * (prediction.step_seconds / bound - 1.0) if bound else 0.0


def plans_of_gap(plan: Plan) -> str:
    """Return which plans the bound of `gap_percent` covers, such as `every plan`."""
    limits: list[str] = []
    if most_stages_per_device(plan) <= 1:
        limits.append("one stage on each device")
    if not plan.shards_state:
        limits.append("whole state in every replica")
    if plan.shares_replicas:
        limits.append("one device for each replica")
    if any(plan.batch_size % stage.micro_batch for stage in plan.stages):
        limits.append("equal micro-batches")
    return f"every plan with {' and '.join(limits)}" if limits else "every plan"


def bottleneck_gap_percent(plan: Plan) -> float:
    """Return by how many percent the slowest device of a plan exceeds the bound for its micro-batch sizes.

    Shared devices and sharded state are treated as in `gap_percent`. The bound is restricted to the plan's sizes,
    because a larger micro-batch always has a faster bottleneck, but takes longer to fill and drain.
    """
    sizes = {stage.micro_batch for stage in own_stages(plan)} or {plan.batch_size}
    bound = bottleneck_bound(
        _problem(plan), sizes=sizes, shared=most_stages_per_device(plan) > 1, sharded=plan.shards_state
    )
    return 100.0 * (plan.batch_size * bottleneck_seconds(plan) / bound - 1.0) if bound else 0.0


def _problem(plan: Plan) -> Problem:
    return Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
