"""Automatic zero-bubble schedules on a graph of stages: list scheduling with the stages' own seconds, many rules tried.

The plan drawn for H1, in the same memory. Stages 1 and 2 forward once more before they go back: stage 3 never waits.
No schedule ends before 20: two forwards and all the work of stage 3.

    time ->
    stage 0   F0 F1 F2       B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4 B5 B5
    stage 1      F0 F1 F2 I0 W0 I1 W1 F3 I2 W2 F4 I3 W3 F5 I4 W4 I5 W5
    stage 2   F0 F1 F2    B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4 B5 B5
    stage 3         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 F5 I5 W3 W4 W5

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 3, does this on a chain, with every stage allowed one
(ZB-1p) or two (ZB-2p) times the memory of 1F1B. Here a stage may hold its own `in_flight` samples, from the forward to
the weight gradient: what `room.with_room` makes of the memory that is left on its devices.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import inf

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.greedy import Rule, greedy
from graphpipe.schedule.list_scheduling.partial_schedule import Board
from graphpipe.schedule.list_scheduling.plan_work import Works, hosted_by, works_of
from graphpipe.schedule.list_scheduling.replay import replay
from graphpipe.schedule.schedule import Kind, Schedule, Task
from graphpipe.schedule.schedulers import one_f_one_b, zb_h1

NAME = "zb-auto"

Change = Callable[[Works, Rule], Rule]
_CHANGES: tuple[Change, ...] = (
    lambda works, rule: replace(rule, balance=not rule.balance),
    lambda works, rule: replace(rule, weight_patience=0.25),
    lambda works, rule: replace(rule, weight_patience=0.5),
    lambda works, rule: replace(rule, weight_patience=1.0),
    lambda works, rule: replace(rule, alternate=not rule.alternate),
    lambda works, rule: replace(rule, forward_patience=0.0),
    lambda works, rule: replace(rule, forward_patience=1.0),
    lambda works, rule: replace(rule, caps=tuple((work.warm_up + work.room + 1) // 2 for work in works.each)),
    lambda works, rule: replace(rule, caps=tuple(min(work.room, work.warm_up + 1) for work in works.each)),
)
_ROUNDS = 2
_TASKS = 100_000
"""That are scheduled near either rule, about: longer schedules are searched less."""


def build(plan: Plan) -> Schedule:
    """Return the best of the 1F1B schedule (whole backwards), H1, and those of many greedy rules.

    The best ends first; among equals, the one whose slowest stage takes the shortest from its own first task to its own
    update: without a barrier between steps that is what a step costs in the long run. Times are those of the stages'
    slowest replicas, with transfers beside the tasks.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for the stages after it.
    """
    works = works_of(plan)
    known = min(_known(plan, works), key=_value, default=None)
    found = _searched(works, known.seconds if known is not None else inf)
    if known is not None and (found is None or _value(known) <= _value(found)):
        found = known
    if found is None:
        return replace(one_f_one_b.build(plan), name=NAME)  # If it cannot be either, it says why.
    return _schedule(plan, found)


def greedy_seconds(plan: Plan, limit_seconds: float = inf) -> float:
    """Return the seconds of the board that the first rule makes: quick, and close to the best.

    Infinite if there is none, or none within the limit.
    """
    works = works_of(plan)
    board = greedy(works, _first_rule(works), limit_seconds)
    return board.seconds if board.complete else inf


def _value(board: Board) -> tuple[float, float]:
    # Rounded: what differs in the last bit is equal.
    return float(f"{board.seconds:.9g}"), board.own_seconds


def _known(plan: Plan, works: Works) -> Iterator[Board]:
    lean = [
        replace(stage, in_flight=works.each[stand].warm_up * stage.micro_batch)
        for stage, stand in zip(plan.stages, works.stands, strict=True)
    ]
    for build_known, form in (
        (one_f_one_b.build, plan),
        (one_f_one_b.build, replace(plan, stages=tuple(lean))),
        (zb_h1.build, plan),
    ):
        try:
            board = replay(works, build_known(form))
        except InvalidInput:  # The greedy rules may still find a way.
            continue
        if board is not None:
            yield board


@lru_cache(maxsize=8)  # Ranked, predicted and lowered, a plan is asked for its schedule several times.
def _searched(works: Works, limit_seconds: float) -> Board | None:
    """The best board of greedy rules: from an eager and from a patient one, what is better nearby.

    Args:
        works: of all stages.
        limit_seconds: boards that end later are of no use.
    """
    eager = _first_rule(works)
    patient = replace(eager, forward_patience=0.25, weight_patience=1.0)
    boards = [_climbed(works, rule, limit_seconds) for rule in (eager, patient)]
    return min((board for board in boards if board is not None), key=_value, default=None)


def _climbed(works: Works, rule: Rule, limit_seconds: float) -> Board | None:
    """The best board near a rule: one setting after the other is changed, and left so where that is better."""
    best, tried = _complete(greedy(works, rule, limit_seconds)), {rule}
    most = 1 + _TASKS // (3 * sum(work.count for work in works.each))
    for change in _CHANGES * _ROUNDS:
        if len(tried) > most:
            break
        changed = change(works, rule)
        if changed not in tried:
            tried.add(changed)
            board = _complete(greedy(works, changed, min(limit_seconds, best.seconds) if best else limit_seconds))
            if board is not None and (best is None or _value(board) < _value(best)):
                best, rule = board, changed
    return best


def _first_rule(works: Works) -> Rule:
    return Rule(caps=tuple(work.room for work in works.each))


def _complete(board: Board) -> Board | None:
    return board if board.complete else None


def _schedule(plan: Plan, board: Board) -> Schedule:
    lines: dict[tuple[int, ...], tuple[Task, ...]] = {(): ()}
    hosted = hosted_by(plan)
    for stages in hosted.values():
        if stages not in lines:
            lines[stages] = tuple(_line(board, stages))
    return Schedule(name=NAME, devices=tuple(lines[hosted.get(each, ())] for each in range(len(plan.cluster.devices))))


def _line(board: Board, stages: tuple[int, ...]) -> list[Task]:
    """The tasks of a device that hosts these stages."""
    tasks = {board.works.stands[stage]: _tasks(board, stage) for stage in stages}
    if len(stages) == 1:
        return next(iter(tasks.values()))
    turns = {work: iter(some) for work, some in tasks.items()}
    return [next(turns[work]) for work in board.order if work in turns]


def _tasks(board: Board, stage: int) -> list[Task]:
    numbers: dict[Kind, Iterator[int]] = {"F": count(), "B": count(), "I": count(), "W": count()}
    kinds = board.seats[board.works.stands[stage]].kinds
    return [Task(kind, stage, next(numbers[kind])) for kind in kinds]
