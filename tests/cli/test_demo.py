"""The demo compares a graph with a chain, then trains stages that form a graph, and writes a page about each."""

import json
from pathlib import Path

import pytest
from cli_cases import CONFIG, TASK, Run

from graphpipe.cli import demo
from graphpipe.cli.example_files import DIGITS
from graphpipe.plans import Plan

TINY = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [
        {"name": "left", "ops": ["a"], "devices": [0], "micro_batch": 8},
        {"name": "right", "ops": ["b"], "devices": [1], "micro_batch": 8},
        {"name": "sum", "ops": ["sum"], "devices": [0], "micro_batch": 16},
    ],
}


@pytest.mark.usefixtures("forked_ranks")
def test_the_demo_compares_and_trains(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.py").write_text(TASK)
    Path("tiny.toml").write_text(CONFIG)
    Path("digits_stages.json").write_text(json.dumps(TINY))
    monkeypatch.setattr(demo, "TRAINING", "tiny.toml")
    monkeypatch.setattr(demo, "STEPS", 1)
    ran = run("demo", "-o", "out", "--json")
    assert ran.code == 0, ran.err
    assert ran.err.startswith("graph against chain, 8 emulated V100: compute sleeps, processes and messages are real\n")
    assert ran.json["ratio_predicted"] == pytest.approx(1.289, abs=0.01)  # see `graphpipe compare` with --schedule 1f1b
    assert 1.1 < ran.json["ratio_rehearsed"] < 1.6  # other work slows down the rehearsal
    assert "ratio      1.29x predicted" in ran.err
    page = Path(ran.json["comparison"]).read_text(encoding="utf-8")
    assert "graph: 5 stages, depth 2" in page
    assert "chain: 8 stages, depth 8" in page
    assert ran.json["accuracy"] is not None
    trained = Path(ran.json["report"])
    assert "Predicted against measured" in trained.read_text(encoding="utf-8")
    assert [stage.name for stage in Plan.load(trained.parent / "plan.json").stages] == ["left", "right", "sum"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_without_plotly_the_demo_draws_no_pages(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `pip install graphpipe-torch` brings no plotly: the demo rehearsed for a minute, and then asked for a bug report.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    monkeypatch.setattr(demo, "STEPS", 1)
    ran = run("demo", "--no-train", "--json", "-o", "out")
    assert ran.code == 0, ran.err
    assert ran.err.endswith("The demo draws pages where plotly is installed: pip install 'graphpipe-torch[report]'.\n")
    assert "comparison" not in ran.json
    assert not Path("out").exists()


def test_in_an_empty_folder_the_demo_writes_the_files_of_its_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With an installed package it said "examples/digits.toml: is not in this folder".
    monkeypatch.chdir(tmp_path)
    ran = run("demo", "--files", "--json")
    assert ran.code == 0, ran.err
    assert set(ran.json["written"]) == {f"examples/{name}" for name in DIGITS.names}
    assert {path.name for path in Path("examples").iterdir()} == set(DIGITS.names)
    ran = run("train", "examples/digits.toml", "--print-config")
    assert ran.code == 0, ran.err


def test_files_that_are_there_are_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").mkdir()
    Path("examples/digits.toml").write_text("mine")
    ran = run("demo", "--files")
    assert ran.code == 0, ran.err
    assert "examples/digits.toml" not in ran.out
    assert Path("examples/digits.toml").read_text() == "mine"
    assert run("demo", "--files").out == "examples/digits.toml and its files are there already\n"


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").write_text("a file")
    ran = run("demo")
    assert (ran.code, ran.out) == (2, "")
    assert "examples: cannot be written: File exists. Name a folder" in ran.err
