"""The plans near a plan: those after one small change of its stages or of their devices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from graphpipe.planners.improve.changes import Change, Changes, Hosted
from graphpipe.planners.improve.device_changes import DeviceChange, DeviceChanges
from graphpipe.planners.problem.partition import Part, Problem, assemble, assemble_in_order, is_chain
from graphpipe.plans.plan import Plan


@dataclass(slots=True)
class Neighbours:
    """The plans near a plan that have not been tried yet."""

    problem: Problem
    plan: Plan
    parts: list[Part] = field(init=False)
    devices: list[tuple[int, ...]] = field(init=False)
    chain: bool = field(init=False)
    tried: set[frozenset[Hosted]] = field(default_factory=set[frozenset[Hosted]])
    """The stages of the plans so far."""
    least: dict[Hosted, float] = field(default_factory=dict[Hosted, float])
    """The seconds of stages so far, see `_least_seconds`."""

    def __post_init__(self) -> None:
        self.move(self.plan)

    def move(self, plan: Plan) -> None:
        """Go on from another plan."""
        self.plan, self.parts = plan, list(map(Part.of, plan.stages))
        self.devices, self.chain = [stage.devices for stage in plan.stages], is_chain(plan)

    def attempts(self, sizes: tuple[int, ...], *, every: bool) -> Iterator[Callable[[float], Plan | None]]:
        """Yield the changes of the plan: each returns the changed plan (see `_hosted`) by the seconds to stay below.

        Args:
            sizes: micro-batch sizes that stages may have, ascending.
            every: whether to yield changes that seldom help by themselves too.
        """
        for change in Changes(self.plan, sizes):
            yield partial(self._changed, change)
        if not every:
            return
        if not _placeable(self.plan):
            for moved in DeviceChanges(self.plan, sizes):
                yield partial(self._moved, moved)
        yield lambda _limit_seconds: as_other_kind(self.problem, self.plan)

    def _changed(self, change: Change, limit_seconds: float) -> Plan | None:
        if (parts := change(self.parts)) is None:
            return None
        if [part.degree for part in parts] == [part.degree for part in self.parts]:
            return self._hosted(list(zip(parts, self.devices, strict=True)), limit_seconds)
        # Other degrees need other devices.
        return self._hosted(list(zip(parts, repeat(()))), limit_seconds) if _placeable(self.plan) else None

    def _moved(self, change: DeviceChange, limit_seconds: float) -> Plan | None:
        hosted = change(list(zip(self.parts, self.devices, strict=True)))
        return None if hosted is None else self._hosted(hosted, limit_seconds)

    def _hosted(self, hosted: list[Hosted], limit_seconds: float) -> Plan | None:
        """Return the plan of stages on devices.

        None if these were tried, or if one of them that is new takes as long as the limit by itself.
        """
        if (stages := frozenset(hosted)) in self.tried:
            return None
        self.tried.add(stages)
        before = set(map(id, self.parts))
        if any(self._least_seconds(stage) >= limit_seconds for stage in hosted if id(stage[0]) not in before):
            return None
        parts, devices = [part for part, _ in hosted], [team for _, team in hosted]
        placed = devices if all(devices) else None
        return assemble_in_order(self.problem, parts, placed, planner=self.plan.planner, chain=self.chain)

    def _least_seconds(self, hosted: Hosted) -> float:
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


def as_other_kind(problem: Problem, plan: Plan) -> Plan | None:
    """Return the plan as a graph of stages instead of a sequential pipeline, or the other way round; None if both are
    the same."""
    parts, devices = [Part.of(stage) for stage in plan.stages], [stage.devices for stage in plan.stages]
    other = assemble(problem, parts, planner=plan.planner, chain=not is_chain(plan), devices=devices)
    return None if other.edges == plan.edges else other


def _placeable(plan: Plan) -> bool:
    """Return whether stages can be put on devices again: all are of one type, and each hosts at most one stage."""
    return not plan.shares_devices and len(plan.cluster.types) == 1
