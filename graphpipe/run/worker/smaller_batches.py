"""Training on a mini-batch with fewer samples than the plan's, such as the last one of an epoch.

Stages keep their micro-batches and do fewer of them. A stage that takes the whole mini-batch takes all of the fewer:

    the plan, 8 samples              micro-batches 2 2 2 2     the whole 8
    a last mini-batch of 6           micro-batches 2 2 2       the whole 6
    a last mini-batch of 5           micro-batches 2 2 1       the whole 5
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.sharding import count_micro_batches
from graphpipe.plans.stage import Stage
from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.warm_up_pairs import communicating_pairs
from graphpipe.schedule import LoweredSchedule, StageTask
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered

_KEPT = 4
"""Sizes of mini-batches whose schedules are kept."""


@dataclass(frozen=True, slots=True)
class SmallerStep:
    """How to train on fewer samples."""

    lowered: LoweredSchedule
    pairs: frozenset[Pair]
    """The pairs of ranks that exchange messages."""
    lasts: Mapping[tuple[int, int], StageTask]
    """The last backward of each replica, by stage and device."""


def smaller_plan(plan: Plan, size: int) -> Plan:
    """Return a plan for fewer samples, with the same stages.

    Raises:
        InvalidInput: there are more than the plan is for, or it updates weights without a flush.
    """
    if size == plan.batch_size:
        return plan
    if plan.weights != "flush" or size > plan.batch_size:
        why = "" if plan.weights == "flush" else ", and it updates weights without a flush"
        raise InvalidInput(
            f"the mini-batch has {size} samples, the plan is for {plan.batch_size}{why}",
            where="step",
            remedy="Drop the last, smaller batch of an epoch, or plan for this batch size.",
        )
    stages = tuple(_smaller(plan, stage, size) for stage in plan.stages)
    return replace(plan, batch_size=size, stages=stages, prediction=None)


def smaller_steps(plan: Plan, placement: RankPlacement, gradient_edges: frozenset[int]) -> Callable[[int], SmallerStep]:
    """Return a function from a number of samples to how they are trained. It keeps what it returned last."""
    return lru_cache(maxsize=_KEPT)(partial(_step, plan, placement, gradient_edges))


def _step(plan: Plan, placement: RankPlacement, gradient_edges: frozenset[int], size: int) -> SmallerStep:
    smaller = smaller_plan(plan, size)
    schedule = build_schedule(smaller)
    lowered = lower(smaller, schedule, gradient_edges=gradient_edges)
    verify_lowered(smaller, schedule, lowered, gradient_edges)
    return SmallerStep(lowered, communicating_pairs(lowered, placement), lowered.last_backwards())


def _smaller(plan: Plan, stage: Stage, size: int) -> Stage:
    micro_batch = size if stage.micro_batch == plan.batch_size else stage.micro_batch
    count = count_micro_batches(size, micro_batch)
    in_flight = min(count, stage.in_flight // stage.micro_batch) * micro_batch
    return replace(stage, micro_batch=micro_batch, in_flight=in_flight, burst=min(stage.burst, count))
