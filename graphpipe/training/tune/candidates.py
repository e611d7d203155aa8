"""The plans that are tried: those of several planners and schedules, the shortest predicted steps first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.registry import planner_names
from graphpipe.planning.choose_schedule import AUTO, schedule_choices
from graphpipe.planning.plan import plan
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers.registry import build_unverified


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan to try."""

    plan: Plan
    """With its prediction."""
    asked: str
    """The settings that differ from those asked for, in words; empty if none does."""

    @property
    def predicted_seconds(self) -> float:
        """Seconds of a step."""
        assert self.plan.prediction is not None
        return self.plan.prediction.step_seconds


def candidates(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    settings: PlanSettings,
    *,
    batch_size: int,
    count: int,
    ends: Callable[[], bool],
) -> list[Candidate]:
    """Return the `count` plans with the shortest predicted steps, shortest first. No two are the same.

    The micro-batches next to those of the best plan are tried too, because what a kernel gains from more samples is the
    least certain of the costs.

    Args:
        graph: of the model.
        costs: of its operators.
        cluster: the devices.
        settings: asked for. Fields that differ from their defaults are kept.
        batch_size: samples of a mini-batch.
        count: the most plans to return.
        ends: says whether the time for planning is over. One plan is always made.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the settings cannot be used.
    """

    def planned(changed: dict[str, Any]) -> Candidate:
        words = ", ".join(f"{name} {value}" for name, value in changed.items())
        made = plan(graph, costs, cluster, replace(settings, **changed), batch_size=batch_size)
        return Candidate(plan=made, asked=words)

    found = [planned({})]
    for changed in _changes(settings, found[0].plan):
        if ends():
            break
        try:
            found.append(planned(changed))
        except (Infeasible, InvalidInput):
            continue  # this planner, or this schedule, is not for this model or these settings
    return distinct(found)[:count]


def distinct(found: list[Candidate]) -> list[Candidate]:
    """Return the candidates with different stages or schedules, the shortest predicted steps first."""
    by_shape: dict[object, Candidate] = {}
    for each in sorted(found, key=lambda each: each.predicted_seconds):
        by_shape.setdefault(shape_of(each.plan), each)
    return list(by_shape.values())


def shape_of(plan: Plan) -> object:
    """Return what ranks do by a plan: stages and the order of their tasks, without names and costs.

    Where each device has one micro-batch, all schedules are one.
    """
    stages = tuple(replace(stage, name="") for stage in plan.stages)
    return stages, build_unverified(plan).devices, plan.weights, plan.predictor


def _changes(settings: PlanSettings, first: Plan) -> Iterator[dict[str, Any]]:
    """Yield settings that differ from those asked for, the likeliest first. What the user has set is not varied."""
    sizes = sorted({stage.micro_batch for stage in first.stages})
    near = [size for each in sizes[:1] + sizes[-1:] for size in (each // 2, each * 2, each // 4)]
    changes: list[dict[str, Any]] = [
        *({"schedule": name} for name in schedule_choices() if name not in (AUTO, first.schedule)),
        *({"micro_batch": size} for size in dict.fromkeys(near) if size and first.batch_size % size == 0),
        {"stages_per_device": 1},
        {"mixed_micro_batches": True},
        *({"planner": name} for name in planner_names(trains=True) if name != settings.planner),
    ]
    plain = {each.name: each.default for each in fields(PlanSettings)}
    for changed in changes:
        if all(getattr(settings, name) == plain[name] for name in changed):
            yield changed
