"""Plans that do not flush: choose stages, samples in flight and versions of weights by the steady period.

In the steady state every stage is busy if nothing makes it wait, so the slowest stage decides. Every planner can search
for that: it is the published objective (`bottleneck`). Versions of weights decide which stages fit, so planners count
them. What planners do not count is added here: the messages that make a stage wait.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.problem.limits import CLOSE, MORE_VERSIONS, NORMAL, SHARES
from graphpipe.planners.problem.options import Objective, Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import bottleneck_seconds, hops, task_bounds
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.plans.verify import verify
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.schedule.segments.planned_versions import delays, most_in_flight, planned_versions, with_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutFlush:
    """Plans for a weight policy, with any planner."""

    weights: WeightPolicy
    predictor: Predictor
    evaluate: Callable[[Plan], float]
    """Seconds per mini-batch of a plan."""
    schedule: str = "1f1b"
    """A schedule with an endless form."""

    def plan(self, planner: Planner, problem: Problem, options: Options) -> Plan:
        """Return the best plan of a planner under the weight policy.

        1. Let the planner search for the shortest bottleneck and for the shortest step, with every micro-batch size. It
           counts, for every stage, the samples in flight and the versions of weights that its place in the pipeline
           takes (`Problem.versions`).
        2. Give each plan the samples in flight that the policy needs, with more and more slack to hide messages.
        3. Keep what is sound and fits in memory with all versions, and simulate the most promising.

        Raises:
            Infeasible: no plan fits in memory with its versions.
            InvalidInput: every plan breaks a rule of the policy, such as stages that share a parameter.
        """
        refused: list[Infeasible | InvalidInput] = []
        plans = [*_slacker(self._candidates(planner, problem, options, refused))]
        if not plans:
            # The plan that lacks the fewest bytes is not known, because planners only say that theirs do not fit.
            raise min(refused, key=lambda error: isinstance(error, Infeasible))
        ranked = sorted(((least_period_seconds(plan), plan) for plan in plans), key=_seconds)[: NORMAL.ranked]
        timed: list[tuple[float, Plan]] = []
        for least, plan in ranked:
            if not timed or least < min(timed, key=_seconds)[0] * CLOSE:
                try:
                    timed.append((self.evaluate(plan), plan))
                except Infeasible as error:  # What waits between the halves of backwards does not fit.
                    refused.append(error)
        if not timed:
            raise refused[-1]
        shortest = min(timed, key=_seconds)[0]
        close = [each for each in timed if each[0] <= shortest * CLOSE]
        return min(close, key=lambda each: (max(delays(each[1])), each[0]))[1]

    def under(self, plan: Plan) -> Plan:
        """Return a plan under the policy, with the samples in flight and versions that it needs."""
        return with_policy(replace(plan, schedule=self.schedule), self.weights, self.predictor)

    def _candidates(
        self, planner: Planner, problem: Problem, options: Options, refused: list[Infeasible | InvalidInput]
    ) -> Iterator[Plan]:
        seen: set[tuple[object, ...]] = set()
        for own in self._options(problem, options):
            for each in self._problems(problem):
                try:
                    plan = replace(planner.plan(each, own), costs=problem.costs)
                    lean = self.under(plan)
                    verify(lean)
                except (Infeasible, InvalidInput) as error:
                    refused.append(error)
                    break  # The others have less memory.
                if (key := (lean.stages, lean.edges)) not in seen:
                    seen.add(key)
                    yield lean
                if memory_shortfall(replace(lean, costs=_with_versions(problem, MORE_VERSIONS).costs)) <= 0:
                    break  # The others would find the same plan.

    def _options(self, problem: Problem, options: Options) -> Iterator[Options]:
        own = replace(options, scheduled=None, mixed_micro_batches=False, evaluate=self._step_seconds)
        objectives: tuple[Objective, ...] = ("bottleneck", "step")
        sizes = [size for size in options.sizes(problem.batch_size) if problem.batch_size % size == 0]
        for size, objective in product(sizes, objectives):
            yield replace(own, objective=objective, micro_batch=size)

    def _problems(self, problem: Problem) -> Iterator[Problem]:
        """Yield the problem, with the versions that its stages keep, and with more and more memory left free.

        There fit samples in flight that hide messages.
        """
        counting = replace(problem, weights=self.weights, predictor=self.predictor)
        yield counting
        yield from (_with_versions(counting, versions) for versions in (2, MORE_VERSIONS))

    def _step_seconds(self, plan: Plan) -> float:
        # Planners compare their candidates for a micro-batch size by the step.
        return self.evaluate(plan if plan.weights == "flush" else with_policy(plan, "flush"))


def least_period_seconds(plan: Plan) -> float:
    """Return a lower bound on the seconds from one mini-batch to the next.

    It is the bottleneck, or what the samples in flight allow (Little's law): each is in flight at a stage for its way
    from there to the farthest sink and back, at least. With the bottleneck alone, plans that messages make wait would
    seem as fast as those with enough samples in flight to hide the messages.
    """
    ways, longest = [0.0] * len(plan.stages), bottleneck_seconds(plan)
    whole = not find_scheduler(plan.schedule).splits_backward
    feeding, back = hops(plan)
    for number in reversed(range(len(plan.stages))):
        tasks, stage = task_bounds(plan, number), plan.stages[number]
        ways[number] += tasks.forward + (tasks.backward if whole else tasks.input_gradient)
        longest = max(longest, ways[number] / stage.in_flight)
        returned = dict(back[number])
        for source, message in feeding[number]:
            if source in returned:
                ways[source] = max(ways[source], message + ways[number] + returned[source])
    return longest * plan.batch_size


def _slacker(plans: Iterable[Plan]) -> Iterator[Plan]:
    """Yield each plan with more and more samples in flight, as far as they fit."""
    for lean in plans:
        tried: list[Plan] = []
        for slack in SHARES:
            more = _with_slack(lean, slack)
            if more not in tried and memory_shortfall(more) <= 0:
                tried.append(more)
        yield from tried


def _with_versions(problem: Problem, versions: int) -> Problem:
    # More copies of all weights: each takes as many bytes as they do, like one more slot of the optimizer.
    costs = problem.costs
    per_byte = costs.state_bytes_per_parameter_byte + versions - 1
    return replace(problem, costs=replace(costs, state_bytes_per_parameter_byte=per_byte))


def _with_slack(plan: Plan, slack: float) -> Plan:
    most = most_in_flight(plan)
    counts = [
        min(most[number], stage.in_flight + ceil(slack * after) * stage.micro_batch)
        for number, (stage, after) in enumerate(zip(plan.stages, plan.stages_after, strict=True))
    ]
    stages = tuple(replace(stage, in_flight=int(n)) for stage, n in zip(plan.stages, counts, strict=True))
    raised = replace(plan, stages=stages)
    pairs = zip(stages, planned_versions(raised), strict=True)
    return replace(raised, stages=tuple(replace(stage, versions=count) for stage, count in pairs))


def _seconds(ranked: tuple[float, Plan]) -> float:
    return ranked[0]
