"""Planners by name: their declared traits are true, and planners from outside the package can be chosen."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from one_stage import ONE_STAGE, install, planners_restored
from problems import towers

import graphpipe as gp
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.registry import DEFAULT, PLANNERS, all_planners, find_planner, planner_names, register_planner


def planned(planner: str) -> gp.Plan:
    problem = towers([2, 2], 4, 8)
    return gp.plan(problem.graph, problem.costs, problem.cluster, batch_size=8, planner=planner)


@pytest.fixture
def own() -> Iterator[Mapping[str, Planner]]:
    """Yield GraphPipe's own planners, and remove those that a test registers."""
    with planners_restored() as known:
        yield known


@pytest.mark.parametrize("name", planner_names(trains=True))
def test_each_planner_writes_its_name_into_its_plans(name: str) -> None:
    assert planned(name).planner == PLANNERS[name].name == name


@pytest.mark.parametrize("name", planner_names(trains=True))
def test_a_planner_of_chains_makes_a_chain(name: str) -> None:
    # The branches are long and costly to replicate, so running them side by side is faster.
    problem = towers([6, 6, 6], 8, 64, parameter_bytes=1e8)
    plan = PLANNERS[name].plan(problem, Options())
    assert is_chain(plan) == (PLANNERS[name].pipeline == "chain")
    assert plan.schedule == PLANNERS[name].own_schedule


@pytest.mark.parametrize("name", planner_names(trains=True))
def test_a_planner_recomputes_if_it_declares_so(name: str) -> None:
    problem = towers([4], 4, 16, saved_bytes=1e8, memory_bytes=2.9e8)
    if PLANNERS[name].recomputes:
        plan = PLANNERS[name].plan(problem, Options(micro_batch=1))
        assert any(stage.recompute != "none" for stage in plan.stages)
    else:
        with pytest.raises(Infeasible):
            PLANNERS[name].plan(problem, Options(micro_batch=1))


@pytest.mark.parametrize("name", planner_names(trains=True))
def test_a_plan_has_the_planners_default_schedule(name: str) -> None:
    problem = towers([2, 2], 4, 8)
    asked = gp.plan(
        problem.graph,
        problem.costs,
        problem.cluster,
        batch_size=8,
        planner=name,
        schedule=PLANNERS[name].default_schedule,
    )
    assert planned(name).schedule == asked.schedule


def test_a_registered_planner_is_chosen_by_name(own: Mapping[str, Planner]) -> None:
    register_planner(ONE_STAGE)
    assert planned("one-stage").planner == "one-stage"
    assert list(all_planners()) == [*own, "one-stage"]


def test_registering_a_planner_twice_changes_nothing(own: Mapping[str, Planner]) -> None:
    register_planner(ONE_STAGE)
    register_planner(ONE_STAGE)
    assert list(all_planners()) == [*own, "one-stage"]


@pytest.mark.usefixtures("own")
def test_a_duplicate_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=rf"planner '{DEFAULT}': another planner has this name\. Choose another"):
        register_planner(replace(ONE_STAGE, name=DEFAULT))


def test_a_planner_of_an_installed_package_is_chosen_by_name(
    own: Mapping[str, Planner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    assert planned("one-stage").planner == "one-stage"
    assert list(all_planners()) == [*own, "one-stage"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("entry_point", "sentence"),
    [
        ("mine = no_such_module:MINE", r"'no_such_module:MINE' cannot be imported: No module named 'no_such_module'"),
        ("mine = one_stage:plan_one_stage", r"'one_stage:plan_one_stage' is a function, must be a Planner"),
    ],
)
def test_an_entry_point_that_is_not_a_planner_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, sentence: str
) -> None:
    install(tmp_path, monkeypatch, entry_point)
    with pytest.raises(InvalidInput, match=rf"entry point 'mine' of graphpipe.planners: {sentence}"):
        find_planner("mine")


def test_an_unknown_planner_gets_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match=r"unknown planner 'grahpipe'\. Did you mean 'graphpipe'"):
        find_planner("grahpipe")


@pytest.mark.usefixtures("own")
def test_what_a_planner_returns_wrongly_is_one_sentence() -> None:
    """They ended in an IndexError and a TypeError."""
    problem = towers([2, 2], 4, 8)
    order = problem.graph.order

    def backwards(problem: Problem, _: Options) -> gp.Plan:
        return assemble(problem, [Part(order[2:], 1, 1), Part(order[:2], 1, 1)], planner="backwards")

    register_planner(Planner(name="backwards", plan=backwards, pipeline="graph"))
    register_planner(Planner(name="nothing", plan=lambda *_: cast("gp.Plan", None), pipeline="graph"))
    with pytest.raises(InvalidInput, match=r"^planner 'backwards': part 1 feeds part 0, .* topological order"):
        planned("backwards")
    with pytest.raises(InvalidInput, match=r"^planner 'nothing': returned NoneType, must return a Plan"):
        planned("nothing")
