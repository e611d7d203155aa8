"""Iterated local search: leave a local optimum by random changes, and improve by small changes from there.

    best --2 random changes--> worse --small changes--> another local optimum, kept if it is better

Lourenco, Martin and Stuetzle, Iterated Local Search, Handbook of Metaheuristics (2003). Small changes alone end where
no single one helps.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from graphpipe.planners.problem.limits import WORTH
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan

Changes = Sequence[Callable[[], Plan | None]]
"""The small changes of a plan, each None where it is impossible."""
_AT_ONCE = 2
"""Random changes from which small changes rarely lead back."""


def iterated(
    best: Plan,
    seconds: float,
    kicks: Iterable[object],
    climb: Callable[[Plan], tuple[float, Plan]],
    changes: Callable[[Plan], Changes],
) -> tuple[float, Plan]:
    """Return the seconds of the plan, and the plan, or those of a faster one that climbing finds from near it.

    The draws are the same in each call.

    Args:
        best: a plan that small changes do not improve.
        seconds: of it, as `climb` counts them.
        kicks: the plan is left as often as this yields.
        climb: improves a plan by small changes; returns its seconds too.
        changes: the small changes of a plan.
    """
    draw = random.Random(0)
    for _ in kicks:
        start = best
        for _ in range(_AT_ONCE):
            start = _changed(start, changes(start), draw)
        trial_seconds, trial = climb(start)
        if trial_seconds * WORTH < seconds:
            seconds, best = trial_seconds, trial
    return seconds, best


def _changed(plan: Plan, changes: Changes, draw: random.Random) -> Plan:
    """Return the plan after one random change that fits in memory, if there is one."""
    trials = (change() for change in draw.sample(changes, len(changes)))
    return next((trial for trial in trials if trial is not None and memory_shortfall(trial) <= 0), plan)
