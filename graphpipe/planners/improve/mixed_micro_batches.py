"""Per-stage micro-batch sizes: a plan of one size is improved stage by stage, with kFkB (GraphPipe, section 6)."""

from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain
from graphpipe.plans.estimates import memory_shortfall
from graphpipe.plans.plan import Plan

_PASSES = 3


def with_mixed_micro_batches(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or one of the same stages with other micro-batch sizes that takes less time.

    Hill climbing: every stage in turn tries half and twice its micro-batch; what shortens the step is kept, until a
    whole pass changes nothing. Bursts line the sizes up: a stage forwards k micro-batches in a row so that k b is
    the largest micro-batch of the plan.
    """
    best, seconds = plan, options.evaluate(plan)
    for _ in range(_PASSES):
        improved = False
        for stage in range(len(plan.stages)):
            for trial in _neighbours(problem, best, stage):
                trial_seconds = options.evaluate(trial)
                if trial_seconds < seconds:
                    best, seconds, improved = trial, trial_seconds, True
        if not improved:
            break
    return best


def _neighbours(problem: Problem, plan: Plan, stage: int) -> list[Plan]:
    """Return the plans in which one stage has half or twice its micro-batch, where that is allowed and fits."""
    here = plan.stages[stage]
    if any(problem.graph[name].whole_batch for name in here.ops):
        return []
    found: list[Plan] = []
    for size in (here.micro_batch // 2, here.micro_batch * 2):
        if size and problem.batch_size % size == 0 and size % here.degree == 0:
            trial = _resized(problem, plan, {stage: size})
            if memory_shortfall(trial) <= 0:
                found.append(trial)
    return found


def _resized(problem: Problem, plan: Plan, sizes: dict[int, int]) -> Plan:
    wanted = [sizes.get(position, stage.micro_batch) for position, stage in enumerate(plan.stages)]
    largest = max((size for size in wanted if size < problem.batch_size), default=problem.batch_size)
    parts = [
        Part(stage.ops, stage.degree, size, max(1, largest // size), stage.recompute)
        for stage, size in zip(plan.stages, wanted, strict=True)
    ]
    devices = [stage.devices for stage in plan.stages]
    return assemble(problem, parts, planner=plan.planner, schedule="kfkb", chain=is_chain(plan), devices=devices)
