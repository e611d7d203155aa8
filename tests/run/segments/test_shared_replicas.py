"""Ranks that share replicas train without a flush as one process that computes whole layers, in double precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import run_ranks, values
from run_tensor_parallel import Case, Cut, captured_of, plan_of, train_segments

from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.schedule.segments.planned_versions import with_policy

TWO: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2, 3], 2, 2),
]
UNEQUAL: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2], 1, 2),
]
REPLICAS: Cut = [(["*"], [0, 1, 2, 3], 2, 4)]
"""One stage: two replicas of two ranks."""
POLICIES: dict[str, tuple[Cut, WeightPolicy, Predictor]] = {
    "stash": (TWO, "stash", ""),
    "vertical sync": (TWO, "vertical-sync", ""),
    "double buffer": (TWO, "double-buffer", ""),
    "moving average": (TWO, "moving-average", ""),
    "spectrain": (TWO, "predict", "spectrain"),
    "pipeoptim": (TWO, "predict", "pipeoptim"),
    "unequal": (UNEQUAL, "stash", ""),
    "replicas": (REPLICAS, "stash", ""),
}


FEW = ("vertical sync", "pipeoptim", "unequal")
"""`make test` tries these: two policies, and a stage whose ranks send to one that is not shared."""


def case_of(policy: str, captured: str = "") -> Case:
    cut, weights, predictor = POLICIES[policy]
    plan = with_policy(plan_of("gpt", cut), weights, predictor)
    return Case(name="gpt", plan=plan, steps=5, captured=captured)


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Return what every rank of every policy of a selected test has computed: the ranks are started once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = [call.params["policy"] for call in calls if call is not None]
    folder: Path = tmp_path_factory.mktemp("capture")
    assert save_capture(captured_of("gpt"), folder / "gpt")
    cases = [case_of(policy, str(folder / "gpt")) for policy in chosen]
    by_rank = values(run_ranks(train_segments, 4, tmp_path_factory.mktemp("ranks"), cases))
    return {policy: [found[at] for found in by_rank] for at, policy in enumerate(chosen)}


@pytest.mark.parametrize(
    "policy", [pytest.param(policy, marks=[] if policy in FEW else pytest.mark.slow) for policy in POLICIES]
)
def test_weights_without_a_flush_are_those_of_one_process(trained: dict[str, list[dict[str, Any]]], policy: str):
    (alone,) = train_segments([case_of(policy)])
    stages = case_of(policy).plan.stages
    assert max(stage.versions for stage in stages) > 1 or len(stages) == 1
    for found in trained[policy]:
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-12)
        for name, tensor in alone["state"].items():
            torch.testing.assert_close(found["state"][name], tensor, rtol=1e-11, atol=1e-12, msg=name)
