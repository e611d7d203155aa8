"""The plan for a few samples: the same stages and cuts, with the fewest samples that still divide as the plan does."""

import math
from collections.abc import Sequence
from dataclasses import replace

from graphpipe.plans import Plan
from graphpipe.plans.stage import Stage
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.planned_versions import in_flight_of

LEAST_ROWS = 2
"""Samples of a micro-batch on one replica, where the plan has as many: some operations need two."""
LEAST_SAMPLES = 4
"""Samples of a mini-batch, where the plan has as many: of two, a mean over classes is one over samples, for example."""


def small_plan(plan: Plan) -> Plan:
    """Return the plan with the smallest mini-batch that divides as its own does.

    It has four samples or more. Every stage has at least two micro-batches, unless the plan gives it the whole
    mini-batch. Micro-batches keep their sizes relative to each other. What changes only where and when something is
    computed, and not what, is left out: sharded state, weight policies, backends, and where a stage rests what it
    offloads.
    """
    sizes = [stage.micro_batch for stage in plan.stages]
    parts = [n for n, size in enumerate(sizes) if size < plan.batch_size]
    factor = _factor([plan.stages[n] for n in parts])
    smaller = {n: sizes[n] // factor for n in parts}
    degrees = [stage.degree for n, stage in enumerate(plan.stages) if n not in smaller]
    batch_size = math.lcm(*(2 * size for size in smaller.values()), *degrees)
    if smaller and plan.batch_size >= LEAST_SAMPLES:
        batch_size *= -(-LEAST_SAMPLES // batch_size)
    if not parts:
        batch_size *= -(-LEAST_ROWS * max(degrees) // batch_size)
    stages = [
        _stage(stage, smaller.get(n, batch_size), batch_size, plan.batch_size) for n, stage in enumerate(plan.stages)
    ]
    found = replace(plan, batch_size=batch_size, stages=tuple(stages), weights="flush", predictor="", prediction=None)
    try:
        build_schedule(found)
    except ValueError:  # a schedule for more micro-batches than these, or for a policy that does not flush
        found = replace(found, schedule="1f1b")
        counts = zip(found.stages, in_flight_of(found), strict=True)
        found = replace(found, stages=tuple(replace(stage, in_flight=n, burst=1) for stage, n in counts))
    return found


def one_stage(plan: Plan, micro_batch: int) -> Plan:
    """Return the plan that computes all operators in one stage on one device, in micro-batches of this size."""
    stage = Stage(
        name="model", ops=tuple(plan.graph.order), devices=(0,), micro_batch=micro_batch, in_flight=plan.batch_size
    )
    return replace(plan, stages=(stage,), edges=(), schedule="1f1b")


def smallest_micro_batch(plan: Plan) -> int:
    """Return the fewest samples that any stage of a plan computes at once on one replica."""
    return min(stage.micro_batch // stage.degree for stage in plan.stages)


def _factor(stages: Sequence[Stage]) -> int:
    # By how much all micro-batches can shrink: each stays a multiple of its replicas, with two samples for each.
    if not stages:
        return 1
    rows = [stage.micro_batch // stage.degree for stage in stages]
    common = math.gcd(*rows)
    least = max(-(-min(LEAST_ROWS, each) * common // each) for each in rows)
    return max(n for n in range(1, common + 1) if common % n == 0 and common // n >= least)


def _stage(stage: Stage, micro_batch: int, batch_size: int, whole: int) -> Stage:
    count, in_flight = batch_size // micro_batch, -(-stage.in_flight // stage.micro_batch)
    return replace(
        stage,
        micro_batch=micro_batch,
        in_flight=min(batch_size, in_flight * micro_batch),
        burst=min(stage.burst, count),
        offload_to=(),
        state="whole",
        versions=1,
        regions=(),
    )
