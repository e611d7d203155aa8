"""Automatic zero-bubble schedules on a graph of stages: list scheduling with the stages' own seconds and many rules.

The drawing has the plan of H1's drawing and the same memory. Stages 1 and 2 do one more forward before their first
backward, so stage 3 never waits. No schedule can be shorter than 20 columns: two forwards and all the work of stage 3.

    time ->
    stage 0   F0 F1 F2       B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4 B5 B5
    stage 1      F0 F1 F2 I0 W0 I1 W1 F3 I2 W2 F4 I3 W3 F5 I4 W4 I5 W5
    stage 2   F0 F1 F2    B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4 B5 B5
    stage 3         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 F5 I5 W3 W4 W5

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 3, schedule a chain, where every stage may use one
(ZB-1p) or two (ZB-2p) times the memory of 1F1B. Here a stage may keep its own `in_flight` samples, from the forward to
the weight gradient. `planners.raise_in_flight.with_room` raises `in_flight` as far as memory allows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import inf

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.greedy import Rule, greedy
from graphpipe.schedule.list_scheduling.partial_schedule import PartialSchedule
from graphpipe.schedule.list_scheduling.plan_work import PlanWork, hosted_stages, work_of_plan
from graphpipe.schedule.list_scheduling.replay import replay
from graphpipe.schedule.list_scheduling.waiting_bytes import has_memory
from graphpipe.schedule.schedule import Kind, Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import dualpipe_v, interleaved, one_f_one_b, zb_h1

NAME = "zb-auto"

Change = Callable[[PlanWork, Rule], Rule]
_CHANGES: tuple[Change, ...] = (
    lambda works, rule: replace(rule, balance=not rule.balance),
    lambda works, rule: replace(rule, weight_wait_share=0.25),
    lambda works, rule: replace(rule, weight_wait_share=0.5),
    lambda works, rule: replace(rule, weight_wait_share=1.0),
    lambda works, rule: replace(rule, alternate=not rule.alternate),
    lambda works, rule: replace(rule, forward_wait_share=0.0),
    lambda works, rule: replace(rule, forward_wait_share=1.0),
    lambda works, rule: replace(rule, caps=tuple((work.warm_up + work.room + 1) // 2 for work in works.stages)),
    lambda works, rule: replace(rule, caps=tuple(min(work.room, work.warm_up + 1) for work in works.stages)),
)
_ROUNDS = 2
_TASKS = 20_000
"""About how many tasks are scheduled in the search from either rule. So longer schedules are searched less."""


def build(plan: Plan) -> Schedule:
    """Return the best of 1F1B and the interleaved schedule (whole backwards), H1, DualPipeV, and those of many rules.

    The best schedule ends first. Of several, it is the one with the least time from a stage's first task to its update,
    at the stage that takes longest. Without a barrier between steps, this is the time of a step in the long run. Times
    are those of the slowest replica of each stage. Transfers overlap with tasks. A schedule is left out if a device has
    no memory for what waits between the halves of backwards.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for the stages after it.
    """
    works = work_of_plan(plan)
    found = [*_known(plan, works)]
    best = _search(works, min((each.seconds for each in found), default=inf))
    found += [] if best is None else [best]
    for partial in sorted(found, key=_value):
        schedule = _schedule(plan, partial)
        if has_memory(plan, schedule.devices):
            return schedule
    return replace(one_f_one_b.build(plan), name=NAME)  # If 1F1B is impossible too, its error says why.


def greedy_seconds(plan: Plan, limit_seconds: float = inf) -> float:
    """Return the seconds of the schedule that the first rule makes, which is quick and close to the best.

    Infinite if the rule makes no schedule within the limit.
    """
    works = work_of_plan(plan)
    partial = greedy(works, _first_rule(works), limit_seconds)
    return partial.seconds if partial.complete else inf


def _value(partial: PartialSchedule) -> tuple[float, float]:
    # Rounded, so that a difference in the last bits does not decide.
    return float(f"{partial.seconds:.9g}"), partial.own_seconds


def _known(plan: Plan, works: PlanWork) -> Iterator[PartialSchedule]:
    lean = tuple(
        replace(stage, in_flight=works.stages[stand].warm_up * stage.micro_batch)
        for stage, stand in zip(plan.stages, works.work_of, strict=True)
    )
    orders = (one_f_one_b.build, zb_h1.build, interleaved.build_in_turn, dualpipe_v.build)
    builds = [(build_known, plan) for build_known in orders]
    if lean != plan.stages:
        builds.insert(1, (one_f_one_b.build, replace(plan, stages=lean)))
    for build_known, form in builds:
        try:
            schedule = build_known(form)
        except InvalidInput:  # The greedy rules may still find a schedule.
            continue
        partial = None if schedule is None else replay(works, schedule)
        if partial is not None:
            yield partial


@lru_cache(maxsize=8)  # Ranking, prediction and lowering each ask for the schedule of the same plan.
def _search(works: PlanWork, limit_seconds: float) -> PartialSchedule | None:
    """Return the best schedule of greedy rules: hill climbing from a rule that never waits and from one that waits.

    Args:
        works: of all stages.
        limit_seconds: schedules that end later are dropped.
    """
    eager = _first_rule(works)
    waiting = replace(eager, forward_wait_share=0.25, weight_wait_share=1.0)
    candidates = [_improve(works, rule, limit_seconds) for rule in (eager, waiting)]
    return min((partial for partial in candidates if partial is not None), key=_value, default=None)


def _improve(works: PlanWork, rule: Rule, limit_seconds: float) -> PartialSchedule | None:
    """Return the best schedule near a rule: change one setting after the other, and keep what is better."""
    best, tried = _complete(greedy(works, rule, limit_seconds)), {rule}
    most = 1 + _TASKS // (3 * sum(work.count for work in works.stages))
    for change in _CHANGES * _ROUNDS:
        if len(tried) > most:
            break
        changed = change(works, rule)
        if changed not in tried:
            tried.add(changed)
            partial = _complete(greedy(works, changed, min(limit_seconds, best.seconds) if best else limit_seconds))
            if partial is not None and (best is None or _value(partial) < _value(best)):
                best, rule = partial, changed
    return best


def _first_rule(works: PlanWork) -> Rule:
    return Rule(caps=tuple(work.room for work in works.stages))


def _complete(partial: PartialSchedule) -> PartialSchedule | None:
    return partial if partial.complete else None


def _schedule(plan: Plan, partial: PartialSchedule) -> Schedule:
    lines: dict[tuple[int, ...], tuple[StageTask, ...]] = {(): ()}
    hosted = hosted_stages(plan)
    for stages in hosted.values():
        if stages not in lines:
            lines[stages] = tuple(_line(partial, stages))
    return Schedule(name=NAME, devices=tuple(lines[hosted.get(at, ())] for at in range(len(plan.cluster.devices))))


def _line(partial: PartialSchedule, stages: tuple[int, ...]) -> list[StageTask]:
    """Return the tasks of a device that hosts these stages."""
    tasks = {partial.works.work_of[stage]: _tasks(partial, stage) for stage in stages}
    if len(stages) == 1:
        return next(iter(tasks.values()))
    turns = {work: iter(some) for work, some in tasks.items()}
    return [next(turns[work]) for work in partial.order if work in turns]


def _tasks(partial: PartialSchedule, stage: int) -> list[StageTask]:
    numbers: dict[Kind, Iterator[int]] = {"F": count(), "B": count(), "I": count(), "W": count()}
    kinds = partial.progress[partial.works.work_of[stage]].kinds
    return [StageTask(kind, stage, next(numbers[kind])) for kind in kinds]


SCHEDULER = Scheduler(
    name=NAME,
    build=build,
    splits_backward=True,
    uses_spare_memory=True,
    tried_by_auto=True,
    considers=frozenset({one_f_one_b.NAME, interleaved.NAME, zb_h1.NAME, dualpipe_v.NAME}),
)
