"""The seconds that a search may take before it returns the best plan so far."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan

Pass = Callable[[Problem, Plan, Options], Plan]
"""Returns the plan, or a faster one."""


class BudgetSpent(Exception):
    """The seconds of a search are over. It reaches no caller of `gp.plan`."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A time at which searches end."""

    end: float = inf
    """In seconds of `time.monotonic`."""

    @staticmethod
    def of(seconds: float) -> "Budget":
        """Return the budget of so many seconds from now on."""
        return Budget(time.monotonic() + seconds)

    def check(self) -> None:
        """End the search if its time is over.

        Raises:
            BudgetSpent: it is.
        """
        if time.monotonic() >= self.end:
            raise BudgetSpent


def improved(problem: Problem, plan: Plan, options: Options, passes: Sequence[Pass]) -> Plan:
    """Return the plan after passes, as many as there is time for."""
    with suppress(BudgetSpent):
        for each in passes:
            plan = each(problem, plan, options)
    return plan
