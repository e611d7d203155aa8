"""Hill climbing over which devices host which stages.

deepen    o1 o2 on A    ->   o1 on A, o2 on A            A reduces the gradients of o2 while it computes o1
host      s on A, t on B   ->   s and t on B, if A hosts another stage
join      s on A, t on B   ->   s and t on A and B
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from math import inf

from graphpipe.planners.improve.changes import Hosted, halves, on_devices
from graphpipe.planners.improve.neighbours import as_other_kind
from graphpipe.planners.problem.limits import MANY, PASSES, WORTH
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, assemble_in_order, is_chain
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds, seconds_per_sample, task_count
from graphpipe.plans.plan import Plan

Team = tuple[int, ...]


def rehosted(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or one near it whose stages are hosted by other devices and which ranks better.

    Args:
        problem: graph, costs, cluster and batch.
        plan: a sound plan.
        options: the caller's.
    """
    changes = HostChanges.of_options(problem, options)
    start = as_planned(problem, plan)
    seconds = options.ranked(start, inf)
    found = [_climbed(changes, options, start, seconds)]
    if (deep := changes.deepened(start)) is not None:
        deep_seconds = options.ranked(deep, seconds / WORTH)
        if deep_seconds * WORTH < seconds:
            found.append(_climbed(changes, options, deep, deep_seconds))
    return min(found, key=lambda each: each[0])[1]


def _climbed(changes: "HostChanges", options: Options, best: Plan, seconds: float) -> tuple[float, Plan]:
    """Return the seconds of the best plan after small changes, and the plan."""
    trials = min(MANY, max(PASSES, options.effort.hosted_tasks // task_count(best)))
    for _ in range(PASSES):
        start = best
        for change in changes.of(best):
            if (trial := change()) is None or least_step_seconds(trial) >= seconds or memory_shortfall(trial) > 0:
                continue
            if not trials:
                return seconds, best
            trials -= 1
            if (trial_seconds := options.ranked(trial, seconds / WORTH)) * WORTH < seconds:
                best, seconds = trial, trial_seconds
                break
        if best is start:
            break
    return seconds, best


@dataclass(frozen=True, slots=True)
class HostChanges:
    problem: Problem
    sizes: Sequence[int]
    tail: frozenset[str]
    most: int
    """Stages that a device may host, those of the tail aside."""
    every: bool
    """Whether to try changes that seldom help by themselves too."""

    @staticmethod
    def of_options(problem: Problem, options: Options) -> "HostChanges":
        """Return the changes that the caller allows."""
        sizes, tail = options.sizes(problem.batch_size), problem.graph.whole_batch_tail
        return HostChanges(problem, sizes, tail, options.stages_per_device, options.kicks(problem.work) > 0)

    def of(self, plan: Plan) -> list[Callable[[], Plan | None]]:
        """Return the changes of a plan, those that most often shorten a step first; None where one is impossible."""
        hosted = [(Part.of(stage), stage.devices) for stage in plan.stages]
        changes = [partial(self._hosting, plan, changed) for changed in self._changed(plan, hosted, self._free(plan))]
        return [*changes, partial(as_other_kind, self.problem, plan)] if self.every else changes

    def deepened(self, plan: Plan) -> Plan | None:
        """Return the plan with each stage cut into two, if it fits."""
        deep: list[Hosted] | None = [(Part.of(stage), stage.devices) for stage in plan.stages]
        for number in reversed(self._free(plan)):
            deep = None if deep is None else _deepened(plan, deep, number)
        trial = self._hosting(plan, deep)
        return None if trial is None or memory_shortfall(trial) > 0 else trial

    def _hosting(self, plan: Plan, hosted: Sequence[Hosted] | None) -> Plan | None:
        if hosted is None or self._most_on_a_device(hosted) > self.most:
            return None
        return self._assembled(plan, hosted)

    def _free(self, plan: Plan) -> list[int]:
        return [number for number, stage in enumerate(plan.stages) if self.tail.isdisjoint(stage.ops)]

    def _most_on_a_device(self, hosted: Sequence[Hosted]) -> int:
        own = (team for part, team in hosted if not self.tail.issuperset(part.ops))
        return max(Counter(chain.from_iterable(own)).values(), default=0)

    def _changed(self, plan: Plan, hosted: Sequence[Hosted], free: Sequence[int]) -> Iterator[list[Hosted] | None]:
        slowest = sorted(free, key=lambda stage: seconds_per_sample(plan, stage), reverse=True)
        for number in slowest:
            yield _deepened(plan, hosted, number)
        for one, other in combinations(slowest, 2):
            yield self._joined(hosted, one, other)
        for one in slowest:
            for team in dict.fromkeys(hosted[other][1] for other in slowest):
                yield self._moved(hosted, one, team)

    def _joined(self, hosted: Sequence[Hosted], one: int, other: int) -> list[Hosted] | None:
        team = tuple(sorted({*hosted[one][1], *hosted[other][1]}))
        first, second = self._on(hosted, one, team), self._on(hosted, other, team)
        if hosted[one][1] == hosted[other][1] or first is None or second is None:
            return None
        return _with(_with(hosted, one, [first]), other, [second])

    def _moved(self, hosted: Sequence[Hosted], stage: int, team: Team) -> list[Hosted] | None:
        left = {device for number, (_, devices) in enumerate(hosted) if number != stage for device in devices}
        there = self._on(hosted, stage, team)
        if team == hosted[stage][1] or not left.issuperset(hosted[stage][1]) or there is None:
            return None
        return _with(hosted, stage, [there])

    def _on(self, hosted: Sequence[Hosted], stage: int, team: Team) -> Hosted | None:
        return on_devices(hosted[stage][0], team, self.sizes)

    def _assembled(self, plan: Plan, hosted: Sequence[Hosted]) -> Plan | None:
        parts, teams = [part for part, _ in hosted], [team for _, team in hosted]
        return assemble_in_order(self.problem, parts, teams, planner=plan.planner, chain=is_chain(plan))


def _deepened(plan: Plan, hosted: Sequence[Hosted], stage: int) -> list[Hosted] | None:
    part, team = hosted[stage]
    if len(part.ops) < 2:
        return None
    return _with(hosted, stage, [(replace(part, ops=ops), team) for ops in halves(plan, part, 0.5)])


def _with(hosted: Sequence[Hosted], stage: int, those: Sequence[Hosted]) -> list[Hosted]:
    return [*hosted[:stage], *those, *hosted[stage + 1 :]]


def as_planned(problem: Problem, plan: Plan) -> Plan:
    """Return the plan with the samples in flight of 1F1B."""
    devices = [stage.devices for stage in plan.stages]
    parts = [Part.of(stage) for stage in plan.stages]
    return assemble(problem, parts, planner=plan.planner, chain=is_chain(plan), devices=devices)
