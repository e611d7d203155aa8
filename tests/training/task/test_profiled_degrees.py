"""A training that profiles measures the numbers of devices per replica that its plan may have."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphpipe as gp
from graphpipe.costs.analytic import estimate
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.make_plan import captured_with_costs

SETTINGS = """
task = 'tiny.py:task'
cluster = 'local:4'
[plan]
costs = 'profile'
cache = false
[train]
batch_size = 4
steps = 1
"""
STAGES = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [{"ops": ["*"], "devices": [0, 1, 2, 3], "micro_batch": 4, "tensor": 4}],
}


def task() -> gp.Task:
    pair = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    data = torch.utils.data.TensorDataset(torch.randn(8, 8), torch.randn(8, 8))
    model = nn.Sequential(pair, nn.LayerNorm(8))
    return gp.Task(module=model, example_inputs=torch.randn(2, 8), loss_fn=nn.functional.mse_loss, dataset=data)


@pytest.mark.parametrize(
    ("asked", "measured"),
    [
        ("plan.tensor=1", [1]),
        ("plan.tensor=2", [1, 2]),
        ("plan.tensor='auto'", [1, 2, 4]),
        ("plan.stages='stages.json'", [1, 4]),
    ],
)
def test_the_degrees_that_the_plan_may_have_are_measured(
    asked: str, measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text(SETTINGS)
    (tmp_path / "stages.json").write_text(json.dumps(STAGES))
    found: list[list[int]] = []

    def profile(model: nn.Module, inputs: Any, cluster: gp.Cluster, *, captured: Any, tensor: list[int], **_: Any):
        found.append(tensor)
        return estimate(captured.graph, cluster)

    monkeypatch.setattr(import_module("graphpipe.training.make_plan"), "profile", profile)
    config = read_config(tmp_path / "own.toml", [asked])
    captured_with_costs(config, task(), gp.Cluster.resolve(config.cluster), lambda _: None)
    assert found == [measured]
