"""`graphpipe train --dry-run`: everything is checked, and nothing is written."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_cases import Run

from graphpipe.training.config.from_toml import read_config
from graphpipe.training.dry_run import dry_run

WORDS = ("train.steps=10", "train.eval_every=3", "train.checkpoint_every=4", "evaluation.average_decay=0.9")


def test_a_dry_run_says_what_would_happen_and_writes_nothing(run: Run, config: Path) -> None:
    group = "optimizer.groups=[{match = ['*.bias'], weight_decay = 0.0}]"
    ran = run("train", config, *WORDS, "optimizer.weight_decay=0.1", group, "--dry-run")
    assert ran.code == 0, ran.err
    assert "would train 10 steps of 16 samples on " in ran.out
    assert "would evaluate 4 times, and save 3 checkpoints" in ran.out
    assert "optimizer: 3 of the model's parameters with lr 0.05, weight_decay 0.1\n" in ran.out
    assert "optimizer: 3 of the model's parameters with lr 0.05, weight_decay 0.0\n" in ran.out
    assert "nothing stands in the way" in ran.out
    assert not Path("runs").exists()
    assert run("train", config, "--dry-run", "--resume", "runs/tiny-1").code == 2


def test_a_dry_run_counts_the_bytes_of_checkpoints_and_says_what_does_not_fit(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_config(config, [*WORDS, "train.check=false", "evaluation.keep_best=true"])
    found = dry_run(settings, plan=None, tell=lambda line: None)
    numbers = 2 * (4 * 8 + 8) + 8 + 1
    # Weights, their averages, two moments of AdamW, and its step of each of six tensors.
    assert (found.parameters, found.checkpoint_bytes) == (numbers, 4 * (4 * numbers) + 6 * 4)
    assert found.checkpoint_bytes is not None
    assert found.disk_bytes == 2 * 4 * numbers + (2 + 1 + 2) * found.checkpoint_bytes
    assert found.problems == ()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=100))
    (problem,) = dry_run(settings, plan=None, tell=lambda line: None).problems
    assert problem.startswith("the run needs ")
    assert "and 100 B is free" in problem


def test_json_has_the_figures(run: Run, config: Path) -> None:
    ran = run("train", config, "--dry-run", "--json", "--no-check")
    assert ran.code == 0, ran.err
    assert (ran.json["steps"], ran.json["checkpoints"], ran.json["problems"]) == (6, 0, [])
    assert json.loads(ran.out) == ran.json
