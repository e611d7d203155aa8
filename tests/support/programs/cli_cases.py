"""Small models and files for the command line."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphpipe.cli.main import main
from graphpipe.graph import Edge, Graph, Op, Work

TASK = """
import os

import torch
from torch import nn

import graphpipe as gp


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, a, b):
        return self.out(a + b)


def model():
    towers = {"a": nn.Linear(4, 8), "b": nn.Linear(4, 8), "sum": Sum()}
    module = gp.DagModule(towers, inputs={"a": ["x"], "b": ["y"], "sum": ["a", "b"]})
    return module, {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}


def epoch(number, batch_size, seed):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    for _ in range(4):
        x, y = (torch.randn(batch_size, 4, generator=generator) for _ in range(2))
        yield {"x": x, "y": y}, (x - y).sum(1, keepdim=True)


def accuracy(outputs, targets):
    return ((outputs - targets).abs() < 1).float().mean().item()


def task(loss_fn=nn.functional.mse_loss):
    module, inputs = model()
    held_out = next(iter(epoch(99, 32, 0)))
    return gp.Task(
        module=module, example_inputs=inputs, loss_fn=loss_fn, epoch=epoch, held_out=held_out, accuracy=accuracy
    )


def nan_task():
    return task(lambda output, targets: (output * float("nan")).mean())


def raising():
    raise KeyError("a thing")


def leaving():
    raise SystemExit(3)


def not_a_model():
    return 3
"""
CONFIG = """
task = "tiny.py:task"
cluster = "local:2"
[plan]
costs = "estimate"
[train]
batch_size = 16
steps = 6
[optimizer]
lr = 0.05
"""
STAGES: dict[str, Any] = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [
        {"ops": ["left.*"], "devices": [0], "micro_batch": 2},
        {"ops": ["right.*"], "devices": [1], "micro_batch": 2},
        {"ops": ["join"], "devices": [2], "micro_batch": 4},
    ],
}


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object on standard output."""
        return json.loads(self.out)


Run = Callable[..., Ran]


def torchrun(ranks: int, *words: object, options: Sequence[object] = ()) -> "subprocess.CompletedProcess[str]":
    """Run graphpipe on several ranks with torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, *options]
    command = [str(word) for word in (*launcher, "-m", "graphpipe", *words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command line in this process."""

    def call(*words: object) -> Ran:
        code = main([str(word) for word in words])
        captured = capfd.readouterr()  # also the output of the ranks
        return Ran(code, captured.out, captured.err)

    return call


def two_branches(parameter_bytes: float = 4e6) -> Graph:
    """Return two branches of two operators each, and their join."""
    names = ("left.0", "left.1", "right.0", "right.1", "join")
    work = Work(flops_per_sample=1e9, traffic_bytes_per_sample=1e5, saved_bytes_per_sample=1e5)
    pairs = [("left.0", "left.1"), ("right.0", "right.1"), ("left.1", "join"), ("right.1", "join")]
    return Graph(
        name="two-branches",
        ops=tuple(Op(name=name, parameter_bytes=parameter_bytes, work=work) for name in names),
        edges=tuple(Edge(source=source, target=target, bytes_per_sample=1e3) for source, target in pairs),
    )


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Return a graph file."""
    two_branches().save(tmp_path / "graph.json")
    return tmp_path / "graph.json"


@pytest.fixture(scope="session")
def planned_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of a plan file for the graph, which is planned once."""
    folder = tmp_path_factory.mktemp("planned")
    two_branches().save(folder / "graph.json")
    words = ("plan", folder / "graph.json", "--cluster", "summit:1x4", "--batch", 16, "-o", folder / "plan.json")
    assert main([str(word) for word in words]) == 0
    return (folder / "plan.json").read_text()


@pytest.fixture
def plan_file(planned_text: str, graph: Path, tmp_path: Path) -> Path:
    """Return a plan file for the graph, whose file is beside it."""
    (tmp_path / "plan.json").write_text(planned_text)
    return tmp_path / "plan.json"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a training configuration in a new folder, which becomes the working directory."""
    (tmp_path / "tiny.py").write_text(TASK)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tiny.toml"
