"""A training of a model without data: it fills, saves and resumes by part, and launchers hold no weights either."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import graphpipe as gp
from graphpipe.errors import InvalidInput

TASK = """
import torch
from torch import nn
import graphpipe as gp

def build():
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)], nn.Linear(8, 4))

def epoch(number, batch_size, seed):
    generator = torch.Generator().manual_seed(number)
    for _ in range(4):
        values = torch.randn(batch_size, 8, generator=generator)
        yield values, values[:, :4].argmax(1)

def task():
    return gp.Task(
        module=build, example_inputs=torch.randn(2, 8), loss_fn=nn.functional.cross_entropy, epoch=epoch
    )
"""
CONFIG = """
task = "meta_task.py:task"
cluster = "local:2"
[plan]
costs = "estimate"
stages = "stages.json"
[train]
batch_size = 8
steps = 4
checkpoint_every = 2
"""
STAGES = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [
        {"ops": ["0", "1"], "devices": [0], "micro_batch": 4},
        {"ops": ["2", "3"], "devices": [1], "micro_batch": 4},
    ],
}

pytestmark = pytest.mark.usefixtures("forked_ranks")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the task, which is the current one."""
    for name, text in (("meta_task.py", TASK), ("meta.toml", CONFIG), ("stages.json", json.dumps(STAGES))):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ranks_train_and_resume_a_model_that_no_process_has(folder: Path) -> None:
    said: list[str] = []
    whole = gp.train("meta.toml", tell=said.append)
    assert any("as plain PyTorch does" in line for line in said)
    first = gp.train("meta.toml", overrides=["train.steps=2", "train.checkpoint_async=true"], tell=None)
    resumed = gp.train("meta.toml", resume=first.folder.path, tell=None)
    expected, found = (load_file(run.folder.weights) for run in (whole, resumed))
    assert found.keys() == expected.keys() == {f"{at}.{kind}" for at in range(4) for kind in ("weight", "bias")}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_the_configuration_names_the_weights(folder: Path) -> None:
    from_file = {f"{at}.weight": torch.full((8 if at < 3 else 4, 8), 0.1) for at in range(4)}
    from_file |= {f"{at}.bias": torch.full((8 if at < 3 else 4,), 0.2) for at in range(4)}
    save_file(from_file, folder / "given.safetensors")
    settings = ["train.initial_weights=given.safetensors", "optimizer.name=sgd", "optimizer.lr=1e-30"]
    run = gp.train("meta.toml", overrides=settings, tell=None)
    for name, tensor in load_file(run.folder.weights).items():
        assert torch.equal(tensor, from_file[name]), name
    save_file({name: from_file[name] for name in from_file if name != "2.bias"}, folder / "given.safetensors")
    with pytest.raises(InvalidInput, match=r"given\.safetensors: has no '2\.bias', which this model has"):
        gp.train("meta.toml", overrides=settings, tell=None)
    with pytest.raises(InvalidInput, match="missing: no such file or folder"):
        gp.train("meta.toml", overrides=["train.initial_weights=missing"], tell=None)
