"""Settings that a plan does not follow are refused: every planner and every field, and every kind of plan.

Some were once ignored in silence, such as `stages_per_device=3` for inference and `offload_to` with `pipedream`.
"""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.planners.improve import roomier_plans
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS, planner_names
from graphpipe.planning.honoured import BY_PLAN, check_asked, honoured
from graphpipe.planning.settings import PlanSettings
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

CLUSTER = gp.Cluster.preset("summit:1x4")
TRAINING: dict[str, Any] = {
    "micro_batch": 4,
    "mixed_micro_batches": True,
    "objective": "bottleneck",
    "stages_per_device": 2,
    "offload_to": "neighbours",
}
"""Another value of each field that planners may follow."""
AROUND = {"tensor", "sequence_parallel", "effort"}
"""Fields that `plan` follows around the planners that declare them (test_choose_ranks.py, test_effort.py)."""
BY_PLANNER = [(planner, field) for planner in planner_names(trains=True) for field in TRAINING]
HONOURED = [(planner, field) for planner, field in BY_PLANNER if field in PLANNERS[planner].honours]
UNHONOURED = [pair for pair in BY_PLANNER if pair not in HONOURED]


@cache
def small() -> tuple[gp.Graph, gp.CostTable]:
    zoo = find_zoo_graph("mmt-small")
    assert zoo is not None
    return zoo.graph, gp.estimate(zoo.graph, CLUSTER)


def stages(**settings: Any) -> tuple[Any, ...]:
    return gp.plan(*small(), CLUSTER, batch_size=32, **settings).stages


def test_every_field_is_followed_by_all_planners_or_declared() -> None:
    assert {each.name for each in fields(PlanSettings)} == BY_PLAN | TRAINING.keys() | AROUND
    assert all(planner.honours <= TRAINING.keys() | AROUND for planner in PLANNERS.values())


@pytest.mark.parametrize(("planner", "field"), UNHONOURED)
def test_a_planner_refuses_what_it_does_not_follow(planner: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"planner '{planner}' does not follow it") as refused:
        stages(planner=planner, **{field: TRAINING[field]})
    assert refused.value.where == field
    others = refused.value.remedy.removeprefix("Leave it out, or choose ").removesuffix(".").split(" or ")
    for other in others:
        check_asked(PlanSettings(planner=other, **{field: TRAINING[field]}), 32)


@pytest.mark.parametrize(("planner", "field"), [pair for pair in HONOURED if pair[1] != "offload_to"])
def test_a_declared_field_changes_a_plan(planner: str, field: str) -> None:
    before = {"mixed_micro_batches": {"schedule": "1f1b"}, "stages_per_device": {"stages_per_device": 1}}
    assert stages(planner=planner, **before.get(field, {})) != stages(planner=planner, **{field: TRAINING[field]})


@cache
def plain(planner: str) -> gp.Plan:
    return PLANNERS[planner].plan(Problem(*small(), CLUSTER, 32), Options())


@pytest.mark.parametrize(("planner", "field"), UNHONOURED)
def test_an_undeclared_field_changes_nothing(planner: str, field: str) -> None:
    assert PLANNERS[planner].plan(Problem(*small(), CLUSTER, 32), OPTIONS[field]).stages == plain(planner).stages


OPTIONS = {field: replace(Options(), **{field: value}) for field, value in TRAINING.items()}


@pytest.mark.parametrize("planner", [planner for planner, field in HONOURED if field == "offload_to"])
def test_neighbours_are_tried_where_memory_is_short(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, each_relieved = list[bool](), roomier_plans.each_relieved

    def watched(plan: gp.Plan, most_seconds: float, *, neighbours: bool) -> Any:
        tried.append(neighbours)
        return each_relieved(plan, most_seconds, neighbours=neighbours)

    monkeypatch.setattr(roomier_plans, "each_relieved", watched)
    graph, costs = small()
    (kind,) = CLUSTER.device_types
    tight = replace(CLUSTER, device_types=(replace(kind, memory_bytes=4e6),))
    for offload_to in ("host", "neighbours"):
        tried.clear()
        gp.plan(graph, costs, tight, batch_size=32, planner=planner, schedule="1f1b", offload_to=offload_to)
        assert set(tried) == {offload_to == "neighbours"}


@pytest.mark.parametrize(
    ("settings", "field", "kind"),
    [
        ({"inference": True, "stages_per_device": 3}, "stages_per_device", "plans for inference"),
        ({"inference": True, "offload_to": "neighbours"}, "offload_to", "plans for inference"),
        ({"inference": True, "schedule": "1f1b"}, "schedule", "plans for inference"),
        ({"inference": True, "mixed_micro_batches": True}, "mixed_micro_batches", "plans for inference"),
        ({"inference": True, "weights": "stash"}, "weights", "plans for inference"),
        ({"weights": "stash", "stages_per_device": 4}, "stages_per_device", "plans without a flush"),
        ({"weights": "stash", "objective": "step"}, "objective", "plans without a flush"),
        ({"weights": "stash", "offload_to": "neighbours"}, "offload_to", "plans without a flush"),
        ({"weights": "stash", "mixed_micro_batches": True}, "mixed_micro_batches", "plans without a flush"),
        ({"inference": True, "effort": "quick"}, "effort", "plans for inference"),
        ({"weights": "stash", "effort": 2.0}, "effort", "plans without a flush"),
    ],
)
def test_a_kind_of_plan_refuses_what_it_does_not_follow(settings: dict[str, Any], field: str, kind: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: is .*, but {kind} do not follow it"):
        stages(**settings)
    followed = honoured(PlanSettings(**settings))
    check_asked(followed, 32)
    assert getattr(followed, field) == getattr(PlanSettings(), field)


@pytest.mark.parametrize("field", ["planner", "micro_batch", "objective", "stages_per_device", "offload_to"])
def test_hand_written_stages_refuse_what_only_planners_follow(field: str) -> None:
    whole = gp.HandStage(ops=("*",), devices=(0,), micro_batch=8)
    settings: dict[str, Any] = {field: ({"planner": "spp"} | TRAINING)[field]}
    with pytest.raises(InvalidInput, match=f"{field}: is .*, but hand-written stages do not follow it"):
        gp.hand_plan(*small(), CLUSTER, batch_size=32, stages=[whole], **settings)


def test_values_that_hold_anyway_are_no_request() -> None:
    default = stages(planner="pipedream")
    assert stages(planner="pipedream", stages_per_device=1, objective="step") == default
    stages(inference=True, stages_per_device=1)
    stages(weights="stash", stages_per_device=1)


@pytest.mark.parametrize("planner", planner_names(trains=False))
def test_planners_of_inference_follow_both_objectives(planner: str) -> None:
    assert stages(planner=planner, inference=True) != stages(planner=planner, inference=True, objective="latency")
    with pytest.raises(InvalidInput, match="'auto' does not work for inference"):
        stages(planner=planner, inference=True, split="auto")
