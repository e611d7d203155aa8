"""A planner of another installed package: the command line and the configuration choose it by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_cases import Run
from one_stage import install, planners_restored

from graphpipe.plans import Plan


@pytest.fixture(autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with planners_restored():
        install(tmp_path_factory.mktemp("site-packages"), monkeypatch)
        yield


def test_plan_and_compare_choose_it(run: Run, graph: Path) -> None:
    problem = (graph, "--cluster", "summit:1x4", "--batch", 16, "--json")
    found = run("plan", *problem, "--planner", "one-stage")
    assert (found.code, found.json["planner"], found.json["stages"]) == (0, "one-stage", 1)
    rows = run("compare", *problem, "--planners", "spp,one-stage").json["rows"]
    assert [(row["planner"], row["status"]) for row in rows] == [("spp", "ok"), ("one-stage", "ok")]


def test_compare_and_completion_list_it(run: Run, graph: Path) -> None:
    compared = run("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--json")
    assert "one-stage" in [row["planner"] for row in compared.json["rows"]]
    assert "one-stage" in run("completion", "bash").out


def test_a_training_configuration_chooses_it(run: Run, config: Path) -> None:
    ran = run(
        "train", config, "cluster=local:1", "plan.planner=one-stage", "plan.costs=estimate", "train.steps=1", "--json"
    )
    assert ran.code == 0
    assert Plan.load(Path(ran.json["directory"]) / "plan.json").planner == "one-stage"
