"""How a front end gets its plan, and which plans it cannot follow."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Origin
from graphpipe.integrations.plan_choice import PlanChoice, check_followed
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.planning.plan import plan
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans.plan import Plan
from graphpipe.run.comm.world import join

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
CLUSTER = Cluster.preset("local:2")


@pytest.fixture(scope="module")
def captured() -> Captured:
    """Return the captured model."""
    return capture_nodes(MODEL, torch.rand(4, 8), Origin(method="auto"))


@pytest.fixture(scope="module")
def made(captured: Captured) -> Plan:
    """Return a plan for it."""
    return plan(captured.graph, estimate(captured.graph, CLUSTER), CLUSTER, batch_size=8, planner="spp")


def agree(choice: PlanChoice, captured: Captured) -> Plan:
    """Return the plan that a choice leads to, for 8 samples."""
    return choice.agree(captured, MODEL, 8, join("cpu", 30, alone=True))


def test_a_plan_its_file_settings_and_a_function_lead_to_the_same_plan(
    captured: Captured, made: Plan, tmp_path: Path
) -> None:
    made.save(tmp_path / "plan.json")
    settings = PlanSettings(planner="spp")
    choices = [made, tmp_path / "plan.json", str(tmp_path / "plan.json"), settings]
    choices.append(lambda graph, costs, cluster, size: plan(graph, costs, cluster, settings, batch_size=size))
    for choice in choices:
        found = agree(PlanChoice(plan=choice, cluster="local:2"), captured)
        assert found.stages == made.stages
    alone = agree(PlanChoice(), captured)
    assert len(alone.cluster.devices) == 1


def test_plans_that_keep_weights_elsewhere_are_refused(captured: Captured, made: Plan) -> None:
    with pytest.raises(InvalidInput, match=r"plan: the plan is for mini-batches of 8, the trainer has 6"):
        check_followed(made, 6)
    stash = PlanSettings(weights="stash", planner="pipedream")
    with pytest.raises(InvalidInput, match=r"the weight policy is 'stash'.*weights='flush'"):
        agree(PlanChoice(plan=stash, cluster="local:2"), captured)
    sharded = replace(made, stages=tuple(replace(stage, state="all") for stage in made.stages))
    with pytest.raises(InvalidInput, match=r"the replicas shard 'all'.*whole weights"):
        check_followed(sharded, 8)
    with pytest.raises(InvalidInput, match=r"splits a parameter \('0\.bias\["):
        agree(PlanChoice(plan=PlanSettings(split="0:2"), cluster="local:2"), captured)


def test_what_rank_0_cannot_plan_is_raised_as_its_own_kind(captured: Captured) -> None:
    def too_large(*_: object) -> Plan:
        raise Infeasible("no plan fits", where="cluster", remedy="Take more devices.")

    with pytest.raises(Infeasible, match=r"cluster: no plan fits\. Take more devices\."):
        agree(PlanChoice(plan=too_large), captured)
