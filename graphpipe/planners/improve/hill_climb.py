"""Hill climbing from a finished plan, by small changes of its stages.

The search before it gives all stages one micro-batch size, and estimates partitions in closed form. The closed form
ignores late messages and stages that wait for two others. Small changes near the best plan correct for that.
Jeon et al., GraphPipe (ASPLOS 2025), section 6, allow each stage its own size and find that it gains little.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from math import inf

from graphpipe.planners.improve.changes import Change, Changes
from graphpipe.planners.improve.relieved import decides
from graphpipe.planners.problem.limits import PASSES, WORTH
from graphpipe.planners.problem.partition import Part, Problem, assemble_in_order, is_chain
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan

_Hosted = tuple[Part, tuple[int, ...]]
"""A stage with its devices, which are empty where they follow from the degrees."""


def hill_climb(
    plan: Plan,
    evaluate: Callable[[Plan, float], float],
    trials: int,
    *,
    sizes: Iterable[int] | None = None,
    whole_backwards: bool = False,
) -> Plan:
    """Return the plan, or a faster one near it.

    A change is kept if it shortens the step and fits in memory, until a whole pass changes nothing. `Changes` lists
    the changes. Stages keep their devices, unless a change is of degrees or of the number of stages. A plan whose
    stages name what they recompute or offload stays as it is.

    Args:
        plan: under 1F1B, or any schedule that takes the samples in flight of Algorithm 2.
        evaluate: returns the seconds of one step of a plan; infinite if the plan does not run, or if the step takes
            longer than the second argument.
        trials: most evaluations.
        sizes: micro-batch sizes that stages may change to; None: all that divide the mini-batch.
        whole_backwards: `evaluate` takes schedules that do not split backwards.
    """
    if not trials or decides(plan):  # Its decisions are for these stages.
        return plan
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    allowed = tuple(sorted(micro_batch_sizes(plan.batch_size) if sizes is None else sizes))
    best, seconds = plan, evaluate(plan, inf)
    near = _Near(problem, best)
    for _ in range(PASSES):
        start = best
        for change in Changes(best, allowed):
            trial = near.changed(change, seconds)
            if trial is None or least_step_seconds(trial, whole_backwards=whole_backwards) >= seconds:
                continue
            if memory_shortfall(trial) > 0:
                continue
            if not trials:
                return best
            trials -= 1
            if (trial_seconds := evaluate(trial, seconds / WORTH)) * WORTH < seconds:
                best, seconds = trial, trial_seconds
                near.move(best)
                if len(best.stages) != len(start.stages):
                    break  # The other changes of this pass name stages by their old positions.
        if best is start:
            break
    return best


@dataclass(slots=True)
class _Near:
    """The plans near a plan that have not been tried yet."""

    problem: Problem
    plan: Plan
    parts: list[Part] = field(init=False)
    devices: list[tuple[int, ...]] = field(init=False)
    chain: bool = field(init=False)
    tried: set[frozenset[_Hosted]] = field(default_factory=set[frozenset[_Hosted]])
    """The stages of the plans so far."""
    least: dict[_Hosted, float] = field(default_factory=dict[_Hosted, float])
    """The seconds of stages so far, see `_least_seconds`."""

    def __post_init__(self) -> None:
        self.move(self.plan)

    def move(self, plan: Plan) -> None:
        """Go on from another plan."""
        self.plan, self.parts = plan, list(map(Part.of, plan.stages))
        self.devices, self.chain = [stage.devices for stage in plan.stages], is_chain(plan)

    def changed(self, change: Change, limit_seconds: float) -> Plan | None:
        """Return the plan after a change.

        None if the change is impossible, if the stages were tried on the same devices, or if a stage that it makes
        takes as long as the limit by itself.
        """
        parts, devices = change(self.parts), self.devices
        if parts is None:
            return None
        if [part.degree for part in parts] != [part.degree for part in self.parts]:
            if not _placeable(self.plan):
                return None
            devices = None
        hosted = list(zip(parts, devices or repeat(()), strict=False))
        if (stages := frozenset(hosted)) in self.tried:
            return None
        self.tried.add(stages)
        before = set(map(id, self.parts))
        if any(self._least_seconds(stage) >= limit_seconds for stage in hosted if id(stage[0]) not in before):
            return None
        return assemble_in_order(self.problem, parts, devices, planner=self.plan.planner, chain=self.chain)

    def _least_seconds(self, hosted: _Hosted) -> float:
        """Return how long a stage computes and updates its weights at least, the part of `least_step_seconds` that
        depends on no other stage."""
        if (known := self.least.get(hosted)) is None:
            part, devices = hosted
            costs, gradients = self.plan.cost_model, 0.0
            # Where devices are not chosen yet, all are of one type.
            tasks = costs.tasks_seconds(part.ops, devices or (0,), part.micro_batch / part.degree, part.recompute)
            if devices and part.state == "whole" and not self.problem.graph.shared:
                count = costs.parameter_bytes.gradients(part.ops)
                gradients = costs.all_reduce_seconds(count, devices)
            work = self.problem.batch_size // part.micro_batch * max(task.forward + task.backward for task in tasks)
            known = self.least[hosted] = work + (gradients + costs.optimizer_seconds(part.ops, part.state, part.degree))
        return known


def _placeable(plan: Plan) -> bool:
    """Return whether stages can be put on devices again: all are of one type, and each hosts at most one stage."""
    return not plan.shares_devices and len(plan.cluster.types) == 1
