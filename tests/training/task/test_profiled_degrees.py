"""A training finds the layouts of a plan that may share replicas, and measures the numbers of devices it may have."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphpipe as gp
from graphpipe.costs.analytic import estimate
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.shards.with_shards import captured_with_shards
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.make_plan import captured_with_costs, plan_with_costs

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


class Block(nn.Module):
    """Two layers that are operators of their own, because the block has a submodule with parameters beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(self.inner(values) + values)))


@pytest.mark.parametrize("tensor", [(1,), (1, 2)], ids=["of one device", "of two devices"])
@pytest.mark.parametrize("asked", [1, 2, "auto"])
def test_given_costs_are_those_of_the_operators_of_the_training(
    tensor: tuple[int, ...], asked: int | str, tmp_path: Path
) -> None:
    # Layouts join operators. A training with a file of costs once joined them whatever the file had been measured for,
    # and did not where devices share none, so that the file was refused.
    data = torch.utils.data.TensorDataset(torch.randn(8, 8), torch.randn(8, 8))
    model = nn.Sequential(Block(), Block())
    own = gp.Task(module=model, example_inputs=torch.randn(2, 8), loss_fn=nn.functional.mse_loss, dataset=data)
    captured = capture_nodes(model, torch.randn(2, 8))
    if tensor != (1,):
        captured = captured_with_shards(captured, model)
    table = estimate(captured.graph, gp.Cluster.preset("local:4"))
    rows = tuple(replace(row, shared=(replace(row, ranks=2),)) if 2 in tensor else row for row in table.rows)
    replace(table, rows=rows).save(tmp_path / "costs.json")
    (tmp_path / "own.toml").write_text(SETTINGS.replace("'profile'", "'costs.json'"))
    config = read_config(tmp_path / "own.toml", [f"plan.tensor={asked!r}"])
    cluster = gp.Cluster.resolve(config.cluster)
    found, costs = captured_with_costs(config, own, cluster, lambda _: None)
    assert found.graph.fingerprint == costs.graph_fingerprint == captured.graph.fingerprint
    shares = [op for op in found.graph.ops if op.shards is not None]
    assert bool(shares) == (2 in tensor)  # apart, no operator has both layers
    if 2 in tensor:
        planned = plan_with_costs(config, found.graph, costs, cluster)
        assert planned.shares_replicas or asked != 2
