"""`tune`: run the most promising plans for a few steps each, and keep the fastest."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import GraphPipeError, Infeasible
from graphpipe.model.capture.capture import Captured
from graphpipe.planning.settings import PlanSettings
from graphpipe.profiler.learning.learn import learn_from
from graphpipe.training.tune.candidates import Candidate, candidates, shape_of
from graphpipe.training.tune.racing import find_fastest
from graphpipe.training.tune.trials import Trials
from graphpipe.training.tune.tuned_model import TunedModelName

SEARCH_SHARE = 0.25
"""The share of the budget after which no other plan is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneProblem:
    """A model with its costs, and what a plan of it is asked for."""

    subject: TunedModelName
    captured: Captured
    costs: CostTable
    cluster: Cluster
    settings: PlanSettings
    port: int = 0
    """Where ranks meet; 0 is any free one."""
    timeout_seconds: float = 300.0
    """How long a rank may show no sign of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that was tried, or could have been."""

    candidate: Candidate
    steps: int = 0
    """Measured ones; 0 if the plan did not run."""
    step_seconds: float | None = None
    """Their median."""
    failure: str = ""
    """Why it did not run; empty if it did, or if the time was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of tuning."""

    trials: tuple[Trial, ...]
    """The fastest first, then the plans that were dropped earlier, then those that did not run."""
    learned: CostTable
    """The costs, corrected by what ran."""
    seconds: float
    """That tuning took."""

    @property
    def best(self) -> Trial:
        """The trial whose plan is kept."""
        return self.trials[0]


def tune(problem: TuneProblem, *, count: int, budget_seconds: float, tell: Callable[[str], None]) -> Tuned:
    """Return the plans that were tried on this machine, the fastest first.

    The plans with the shortest predicted steps race (`racing`). What they measure corrects the costs. If these lead to
    another plan, it races against the winner.

    Args:
        problem: what to plan.
        count: the most plans to run, without the one that joins.
        budget_seconds: after these, no plan is searched or begun.
        tell: called with a line for what takes a while.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the settings cannot be used.
        GraphPipeError: no plan ran; has the error of the first.
    """
    start = time.monotonic()
    with TemporaryDirectory(prefix="graphpipe-tune-") as folder:
        trials = Trials(
            subject=problem.subject,
            captured=problem.captured,
            folder=Path(folder),
            ends_at=start + budget_seconds,
            tell=tell,
            port=problem.port,
            timeout_seconds=problem.timeout_seconds,
        )
        ends = start + SEARCH_SHARE * budget_seconds
        chosen = _search(problem, problem.costs, count=count, ends=lambda: time.monotonic() > ends)
        numbers = [trials.add(each) for each in chosen]
        raced = find_fastest(numbers, trials.race, joining=lambda: _joining(problem, trials))
        if not raced.order:
            why = next(iter(trials.failures.values()), "the budget was over before the first step ended")
            raise GraphPipeError(f"none of {len(numbers)} plans ran: {why}")
        learned = learn_from(trials.runs(), problem.costs).costs
    order = [*raced.order, *(number for number in range(len(trials.candidates)) if number not in raced.order)]
    return Tuned(
        trials=tuple(
            Trial(
                candidate=trials.candidates[number],
                steps=raced.steps(number),
                step_seconds=raced.typical(number) if raced.steps(number) else None,
                failure=trials.failures.get(number, ""),
            )
            for number in order
        ),
        learned=learned,
        seconds=time.monotonic() - start,
    )


def _search(problem: TuneProblem, costs: CostTable, *, count: int, ends: Callable[[], bool]) -> list[Candidate]:
    return candidates(
        problem.captured.graph,
        costs,
        problem.cluster,
        problem.settings,
        batch_size=problem.subject.batch_size,
        count=count,
        ends=ends,
    )


def _joining(problem: TuneProblem, trials: Trials) -> list[int]:
    """Return the plan by the costs that the first round has corrected, if it is another one."""
    if trials.over or not trials.runs():
        return []
    costs = learn_from(trials.runs(), problem.costs).costs
    try:
        [found] = _search(problem, costs, count=1, ends=lambda: True)
    except Infeasible:  # slower operators can need more memory for a schedule
        return []
    if shape_of(found.plan) in [shape_of(each.plan) for each in trials.candidates]:
        return []
    return [trials.add(Candidate(plan=found.plan, asked="costs by the first steps"))]
