"""Per-stage micro-batch sizes with kFkB: improve a plan of one size, stage by stage (GraphPipe, section 6)."""

from dataclasses import replace

from graphpipe.planners.problem.limits import PASSES
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers import kfkb


def with_mixed_micro_batches(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one with the same stages and other micro-batch sizes.

    Hill climbing: try half and twice the micro-batch of every stage in turn, and keep a change that shortens the step,
    until a whole pass changes nothing. Bursts align the sizes: a stage forwards k micro-batches of b samples in a row,
    so that k b is the largest micro-batch of the plan.
    """
    best, seconds = plan, options.evaluate(plan)
    for _ in range(PASSES):
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
    """Return the plans in which one stage has half or twice its micro-batch, if that is allowed and fits in memory."""
    here = plan.stages[stage]
    if any(problem.graph[name].whole_batch for name in here.ops):
        return []
    plans: list[Plan] = []
    for size in (here.micro_batch // 2, here.micro_batch * 2):
        if size and problem.batch_size % size == 0 and size % here.degree == 0:
            trial = _resized(problem, plan, {stage: size})
            if memory_shortfall(trial) <= 0:
                plans.append(trial)
    return plans


def _resized(problem: Problem, plan: Plan, sizes: dict[int, int]) -> Plan:
    wanted = [sizes.get(position, stage.micro_batch) for position, stage in enumerate(plan.stages)]
    largest = max((size for size in wanted if size < problem.batch_size), default=problem.batch_size)
    parts = [
        replace(Part.of(stage), micro_batch=size, burst=max(1, largest // size))
        for stage, size in zip(plan.stages, wanted, strict=True)
    ]
    devices = [stage.devices for stage in plan.stages]
    return assemble(problem, parts, planner=plan.planner, schedule=kfkb.NAME, chain=is_chain(plan), devices=devices)
