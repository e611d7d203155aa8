"""Schedules of several mini-batches in a row: a segment, after which the pipeline drains.

In the drawing, two stages do mini-batches of two micro-batches. A forward and a backward take one column, an update
takes none. `F1` after `U0` reads the new weights. Without a flush, no device waits between two mini-batches.

    flush      stage 0   F0 F1    B0 B1 U0 F2 F3    B2 B3 U1
               stage 1      F0 B0 F1 B1 U0    F2 B2 F3 B3 U1

    otherwise  stage 0   F0 F1    B0 F2 B1 U0 F3 B2    B3 U1
               stage 1      F0 B0 F1 B1 U0 F2 B2 F3 B3 U1

Narayanan et al., PipeDream (SOSP 2019), section 3.2, order the tasks of a chain like that: 1F1B, endlessly. On a graph
of stages, `in_flight` says how many micro-batches a stage is ahead, as in synchronous 1F1B.
"""

from collections.abc import Iterator

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.stage_work import work_of_stages
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Kind, Schedule, StageTask
from graphpipe.schedule.schedulers.registry import SCHEDULERS, build_unverified, find_scheduler
from graphpipe.schedule.segments.verify_versions import verify_versions
from graphpipe.schedule.segments.weight_versions import weight_reads
from graphpipe.schedule.verify import verify

_WHOLE: tuple[Kind, ...] = ("B",)
_SPLIT: tuple[Kind, ...] = ("I", "W")


def build_segment(plan: Plan, mini_batches: int) -> Schedule:
    """Return the schedule of a segment under the plan's weight policy, verified.

    Micro-batches count on through the segment. `U2.0` is the update of stage 2 after the segment's first mini-batch.

    Args:
        plan: a sound plan.
        mini_batches: at least 1.

    Raises:
        InvalidInput: the number of mini-batches is not positive, the plan's schedule cannot go on without a flush, or
            the plan's samples in flight or versions are too few, or a stage's micro-batches do not divide the
            mini-batch.
    """
    segment = build_unverified_segment(plan, mini_batches)
    verify(plan, segment)
    verify_versions(plan, segment, weight_reads(plan, segment))
    return segment


def build_unverified_segment(plan: Plan, mini_batches: int) -> Schedule:
    """Return the schedule of a segment, for a caller that verifies it elsewhere.

    Raises:
        InvalidInput: as `build_segment`, but the versions are not checked.
    """
    if mini_batches < 1:
        raise InvalidInput(f"is {mini_batches}, must be at least 1", where="mini_batches")
    if mini_batches > 1:
        _check_divides(plan)
    if plan.weights == "flush":
        return _repeated(plan, build_unverified(plan), mini_batches)
    scheduler = find_scheduler(plan.schedule)
    if not scheduler.endless:
        known = [name for name, scheduler in SCHEDULERS.items() if scheduler.endless]
        raise InvalidInput(
            f"schedule '{plan.schedule}' cannot go on without a flush, as the weight policy '{plan.weights}' needs",
            where="schedule",
            remedy=f"Choose {', '.join(known)}, or the weight policy 'flush'.",
        )
    split = [work.split and scheduler.splits_backward for work in work_of_stages(plan)]
    bursts = [stage.burst if scheduler.uses_bursts else 1 for stage in plan.stages]
    orders = [[*_order(plan, stage, mini_batches, split[stage], burst)] for stage, burst in enumerate(bursts)]
    return merge(plan.schedule, plan, orders, mini_batches)


def _check_divides(plan: Plan) -> None:
    for stage in plan.stages:
        if plan.batch_size % stage.micro_batch:
            raise InvalidInput(
                f"micro_batch {stage.micro_batch} does not divide batch {plan.batch_size}, as segments of several "
                "mini-batches need",
                where=f"stage '{stage.name}'",
                remedy="Train step by step, or plan with a micro_batch that divides it.",
            )


def _repeated(plan: Plan, schedule: Schedule, mini_batches: int) -> Schedule:
    devices: list[tuple[StageTask, ...]] = []
    for device, tasks in enumerate(schedule.devices):
        hosted = [stage for stage, it in enumerate(plan.stages) if device in it.devices]
        repeated: list[StageTask] = []
        for turn in range(mini_batches):
            repeated += [it._replace(micro_batch=it.micro_batch + turn * plan.micro_batches(it.stage)) for it in tasks]
            repeated += [StageTask("U", stage, turn) for stage in hosted]
        devices.append(tuple(repeated))
    return Schedule(name=schedule.name, devices=tuple(devices))


def _order(plan: Plan, stage: int, mini_batches: int, split: bool, burst: int) -> Iterator[StageTask]:
    """Yield the tasks of a stage: warm-up forwards, backwards and forwards in turn, then the remaining backwards.

    If the backward is split, the gradient of the inputs leaves before the gradient of the weights is computed.
    """
    micro_batches, size = plan.micro_batches(stage), plan.stages[stage].micro_batch
    count, halves = micro_batches * mini_batches, _SPLIT if split else _WHOLE
    warm_up = min(count, max(burst, plan.stages[stage].in_flight // size))
    yield from (StageTask("F", stage, index) for index in range(warm_up))
    for first in range(0, count, burst):
        for index in range(first, min(first + burst, count)):
            yield from (StageTask(kind, stage, index) for kind in halves)
            if not (index + 1) % micro_batches:
                yield StageTask("U", stage, index // micro_batches)
        yield from (
            StageTask("F", stage, index) for index in range(warm_up + first, min(warm_up + first + burst, count))
        )
