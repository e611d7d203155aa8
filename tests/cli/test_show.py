"""`graphpipe show`, `graphpipe --version` and `graphpipe` without a verb."""

import pytest
from cli_cases import Run

from graphpipe.cluster import Cluster
from graphpipe.planners.registry import PLANNERS
from graphpipe.versions import version_line
from graphpipe.zoo_graphs import find_zoo_graph


def test_operators_are_listed_in_order_with_what_they_read(run: Run) -> None:
    ran = run("show", "two-tower-small", "--json")
    assert ran.code == 0
    found = find_zoo_graph("two-tower-small")
    assert found is not None
    assert [op["name"] for op in ran.json["operators"]] == list(found.graph.order)
    reads = {(source, op["name"]) for op in ran.json["operators"] for source in op["reads"]}
    assert reads == {(edge.source, edge.target) for edge in found.graph.edges}
    shown = run("show", "two-tower-small").out
    assert f"{len(found.graph.ops)} operators, " in shown


def test_without_a_model_all_names_are_listed(run: Run) -> None:
    names = run("show", "--json").json
    assert {"mmt", "mmt-small"} <= set(names["models"])
    assert set(PLANNERS) <= set(names["planners"])
    assert "1f1b" in names["schedules"]
    for cluster in names["clusters"]:
        Cluster.preset(cluster)
    assert "summit:2x4" in run("show").out


def test_single_operations_of_a_model_are_listed(run: Run) -> None:
    ran = run("show", "two-tower-small", "--look-into", "*", "--json", "--no-cache")
    whole = find_zoo_graph("two-tower-small")
    assert whole is not None
    names = [op["name"] for op in ran.json["operators"]]
    assert len(names) > 2 * len(whole.graph.ops)
    assert any(name.endswith(".gelu") for name in names)


def test_an_unknown_model_is_refused(run: Run) -> None:
    ran = run("show", "mtm")
    assert (ran.code, "mmt" in ran.err) == (2, True)


def test_the_version(run: Run) -> None:
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"{version_line()}\n")
    assert version_line().startswith("graphpipe 0.")


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_the_command_alone_prints_its_help(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code == 0
    assert "plan" in ran.out
    assert "Exit codes: 0 done" in ran.out
