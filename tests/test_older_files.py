"""Files of schema version 1 still load: a plan, checkpoints and run folders written before the rooms were laid out."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import graphpipe as gp
from graphpipe.graph import Exchanges

OLD = Path(__file__).parent / "fixtures" / "version_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the files, which a command may change."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    return tmp_path


def graphpipe(folder: Path, *words: str) -> str:
    """Run the command line in a folder, and return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "graphpipe", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_plan_and_its_traces() -> None:
    plan = gp.Plan.load(OLD / "finished" / "plan.json")
    assert [stage.ops for stage in plan.stages] == [("b",), ("a", "sum")]
    assert gp.simulate(plan) == gp.Trace.load(OLD / "finished" / "trace-predicted.json")
    assert plan.costs == gp.CostTable.load(OLD / "finished" / "costs.json")
    assert plan.cluster == gp.Cluster.load(OLD / "two.toml")
    assert gp.Trace.load(OLD / "finished" / "trace-measured.json").step_seconds > 0


def test_a_plan_whose_costs_had_a_share_that_weight_gradients_keep() -> None:
    """Before each operator said what it keeps between the halves of its backward, one share stood for all of them."""
    plan = gp.Plan.load(OLD.parent / "halves" / "plan.json")
    assert plan.costs.kept_for_weight_gradient == 0.75
    assert plan.costs.fingerprint == "1568e86b3f1e1ea893e010befa3fcd86b81ad1ac19c7dc65232e649858cf98e0"
    found, before = gp.simulate(plan), gp.Trace.load(OLD.parent / "halves" / "trace-predicted.json")
    assert {span.kind for span in found.spans} >= {"I", "W"}
    assert (found.spans, found.peak_bytes) == (before.spans, before.peak_bytes)


def test_a_plan_whose_layouts_had_their_figures_beside_each_other() -> None:
    plan = gp.Plan.load(OLD.parent / "shared_layers" / "plan.json")
    head, layer = (plan.graph[name].shards for name in ("head.vocabulary", "layers.1.attention"))
    assert head is not None
    assert head.figures.forward == Exchanges(reductions=1.5, bytes_per_sample=144.0)
    assert layer is not None
    assert layer.sequence is not None
    assert layer.sequence.figures.saved_bytes_per_sample == 2208.0
    assert gp.simulate(plan).step_seconds > 0


@pytest.mark.usefixtures("forked_ranks")
def test_a_broken_run_resumes_from_its_checkpoint(folder: Path) -> None:
    result = json.loads(graphpipe(folder, "train", "tiny.toml", "--resume", "broken", "--json"))
    assert result["steps"] == 6
    assert losses(folder / "broken") == pytest.approx(losses(OLD / "finished"), rel=1e-5)
    resumed, finished = (load_file(run / "model.safetensors") for run in (folder / "broken", OLD / "finished"))
    for name, tensor in finished.items():
        assert torch.allclose(resumed[name], tensor, rtol=1e-5), name


@pytest.mark.usefixtures("forked_ranks")
def test_a_finished_run_is_exported_and_reported(folder: Path) -> None:
    graphpipe(folder, "export", "finished", "-o", "weights.safetensors")
    exported, saved = (load_file(folder / name) for name in ("weights.safetensors", "finished/model.safetensors"))
    assert exported.keys() == saved.keys()
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    graphpipe(folder, "report", "finished", "-o", "report.html")
    assert "8.999885559082031" in (folder / "report.html").read_text()  # the loss of its first step
