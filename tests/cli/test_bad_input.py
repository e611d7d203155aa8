"""Bad input: one sentence on standard error, the documented exit code, no traceback, nothing half-written."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import STAGES, Ran, Run, two_branches

from graphpipe.cli.main import main

ON = ("--cluster", "summit:1x4", "--batch", "16")


def check(ran: Ran, code: int, *parts: str) -> None:
    """Check the exit code, and that standard error is one sentence with these parts."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("graphpipe: error: ")
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("pln",), ("unknown verb 'pln'", "Did you mean 'plan'?")),
        (("plan", "GRAPH", *ON, "--planner", "grafpipe"), ("unknown planner 'grafpipe'", "'graphpipe'")),
        (
            ("plan", "GRAPH", *ON, "--schedule", "gpipe", "--mixed-micro-batches"),
            ("'gpipe' needs one micro-batch size",),
        ),
        (("plan", "GRAPH", *ON, "--schedule", "zb-h2"), ("unknown schedule 'zb-h2'", "'zb-h1'")),
        (("compare", "GRAPH", *ON, "--planners", "spp,sp"), ("unknown planner 'sp'", "'spp'")),
        (("plan", "GRAPH", "--cluster", "sumit:1x4", "--batch", "16"), ("'sumit'", "Did you mean 'summit'?")),
        (("plan", "GRAPH", "--cluster", "summit:4", "--batch", "16"), ("summit:NODESxDEVICES",)),
        (("plan", "GRAPH", "--cluster", "none.toml", "--batch", "16"), ("none.toml", "No such file")),
        (("plan", "GRAPH", "--cluster", "summit:1x4", "--batch", "0"), ("--batch: is 0",)),
        (("plan", "GRAPH", *ON, "--micro-batch", "17"), ("is 17, must be at most batch 16", "Choose a smaller one")),
        (
            ("plan", "GRAPH", *ON, "--micro-batch", "3", "--weights", "stash"),
            ("micro-batch 3 does not divide batch 16, as the weight policy 'stash' needs", "divisor of 16"),
        ),
        (("compare", "GRAPH", *ON, "--planners", "spp", "--micro-batch", "17"), ("must be at most batch 16",)),
        (("compare", "GRAPH", *ON, "--search-seconds", "0"), ("--search-seconds",)),
        (("plan", "GRAPH", *ON, "--load", "lef=1:1"), ("load 'lef': matches no operator", "Did you mean 'left'?")),
        (("plan", "GRAPH", *ON, "--load", "left=1:x"), ("'left=1:x' has something else than numbers", "vision=1:0.5")),
        (("compare", "GRAPH", *ON, "--load", "left=-1"), ("load 'left': lists -1.0", "must be finite")),
        (
            ("plan", "GRAPH", *ON, "--stages", "s.json", "--planner", "spp"),
            ("planner: is 'spp'", "hand-written stages"),
        ),
        (("plan", "GRAPH", *ON, "--planner", "spp", "--stages-per-device", "2"), ("planner 'spp' does not follow it",)),
        (("compare", "GRAPH", *ON, "--planners", "spp,gpipe", "--stages-per-device", "2"), ("is not followed by spp",)),
        (("plan", "GRAPH", *ON, "--look-into", "*"), ("--look-into: a graph file has no submodules", "captured from")),
        (("plan", "mtt", *ON), ("'mtt'", "Did you mean 'mmt'?")),
        (("plan", "missing.json", *ON), ("missing.json", "No such file")),
        (("plan", "graph.txt", *ON), ("'graph.txt'", "graphpipe import")),
        (("plan", "nothing.py:model", *ON), ("nothing.py", "no such file")),
        (("plan", "no_such_package:model", *ON), ("No module named 'no_such_package'",)),
        (("profile", "mmt-small", "--samples", "1,x"), ("--samples: '1,x' is not a list", "4,8")),
        (("profile", "mmt-small", "--tensor", "auto"), ("--tensor: 'auto' is not a list", "1,2")),
        (("profile", "GRAPH"), ("no module behind it",)),
        (("simulate", "missing.json"), ("missing.json", "No such file")),
        (("export", "plan.json", "--format", "megatrn"), ("unknown format 'megatrn'", "'megatron'")),
        (("evaluate", "missing"), ("missing: no such folder", "the folder of a run")),
        (("evaluate", "."), ("is not in the folder of a run",)),
        (("export", "missing.json", "--format", "megatron"), ("missing.json", "No such file")),
        (("export", ".", "--format", "megatron"), (".: cannot read: Is a directory",)),
        (("show", "--schema", "stage"), ("unknown kind of document 'stage'", "'stages'")),
        (("show", "GRAPH", "--schema", "plan"), ("--schema: goes without a model",)),
        (("simulate", "GRAPH"), ("is a graphpipe graph file, not a plan file",)),
        (("import", "missing.txt", "--format", "pipedream", "-o", "x.json"), ("missing.txt", "No such file")),
        (("import", "missing", "--format", "aceso", "-o", "x"), ("missing", "No such file", "profiles")),
        (("import", "p", "--format", "aceso", "--samples", "1", "-o", "x"), ("--samples", "does not go with", "aceso")),
        (("import", "p", "--format", "piper", "--plan", "a", "-o", "x"), ("--plan", "does not go with", "piper")),
        (("import", "p", "--format", "aceso", "--memory", "much", "-o", "x"), ("--memory", "'much' is not a number")),
        (("import", "p", "--format", "aceso", "--node-gpus", "0", "-o", "x"), ("--node-gpus", "is 0")),
        (("train", "missing.toml"), ("missing.toml", "No such file")),
    ],
)
def test_one_sentence_names_the_mistake(run: Run, graph: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    check(run(*(graph if word == "GRAPH" else word for word in words)), 2, *parts)


@pytest.mark.parametrize(
    "words", [("plan",), ("plan", "m", "--cluster", "local:2", "--batch", "many"), ("simulate", "p", "--odd")]
)
def test_arguments_that_argparse_refuses_exit_with_2(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert "error: " in ran.err
    assert "Traceback" not in ran.err


def test_a_model_that_cannot_fit_is_infeasible(run: Run, tmp_path: Path) -> None:
    two_branches(parameter_bytes=1e11).save(tmp_path / "graph.json")
    check(
        run("plan", tmp_path / "graph.json", *ON, "-o", tmp_path / "plan.json"),
        3,
        "fits in memory",
        "bytes",
        "stage 's0'",
    )
    assert not (tmp_path / "plan.json").exists()
    ran = run("compare", tmp_path / "graph.json", *ON, "--planners", "spp", "--json")
    assert ran.code == 3
    assert ran.json["rows"][0]["status"] == "infeasible"
    assert "fits in memory" in ran.json["rows"][0]["reason"]


def edit(path: Path, change: dict[str, Any]) -> Path:
    """Write a JSON file again with other values."""
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return path


def test_the_message_for_a_cyclic_graph_lists_the_cycle(run: Run, graph: Path) -> None:
    edges = json.loads(graph.read_text())["edges"]
    edit(graph, {"edges": [*edges, {"source": "left.1", "target": "left.0"}]})
    check(run("plan", graph, *ON), 2, "cycle: left.")


def test_an_empty_graph_file(run: Run, graph: Path) -> None:
    check(run("plan", edit(graph, {"ops": [], "edges": []}), *ON), 2, "no operators")


def test_nan_in_a_costs_file(run: Run, plan_file: Path, graph: Path, tmp_path: Path) -> None:
    costs = json.loads(plan_file.read_text())["plan"]["costs"]
    costs["rows"][0]["forward"]["lines"] = [[float("nan"), 1.0]]
    costs = {"graphpipe": "costs", "schema_version": 1} | costs
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    check(run("plan", graph, *ON, "--costs", tmp_path / "costs.json"), 2, "costs.json", "NaN")


def test_costs_of_another_graph(run: Run, plan_file: Path, tmp_path: Path) -> None:
    costs = {"graphpipe": "costs", "schema_version": 1} | json.loads(plan_file.read_text())["plan"]["costs"]
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    two_branches(parameter_bytes=1.0).save(tmp_path / "other.json")
    check(run("plan", tmp_path / "other.json", *ON, "--costs", tmp_path / "costs.json"), 2, "made for graph")


def test_a_plan_file_of_another_version_names_both(run: Run, plan_file: Path) -> None:
    check(run("simulate", edit(plan_file, {"schema_version": 7})), 2, "version 7", "reads version 1")


def test_a_malformed_plan_file_names_the_field(run: Run, plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())["plan"]
    plan["stages"][0]["micro_batch"] = "many"
    check(run("simulate", edit(plan_file, {"plan": plan})), 2, "plan.stages.0.micro_batch", "many")


def test_a_truncated_plan_file(run: Run, plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text()[:1000])
    check(run("simulate", plan_file), 2, "not valid JSON", "line")


def test_a_file_that_cannot_be_written_leaves_nothing(run: Run, plan_file: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    check(run("simulate", plan_file, "-o", plan_file / "trace.json"), 2, "cannot write")
    assert sorted(tmp_path.iterdir()) == before


def test_a_stages_file_with_an_unknown_operator(run: Run, graph: Path, tmp_path: Path) -> None:
    stages = STAGES | {"stages": [{"ops": ["lift.*"], "devices": [0], "micro_batch": 2}]}
    (tmp_path / "stages.json").write_text(json.dumps(stages))
    check(run("plan", graph, *ON, "--stages", tmp_path / "stages.json"), 2, "'lift.*' matches no operator")


@pytest.mark.parametrize(
    ("recompute", "part"),
    [
        ("some", "'none' or 'full' (found 'some')"),
        (["left.9"], "'left.9' is not an operator of the stage"),
        (["lift.*"], "'lift.*' matches no operator of the stage"),
        ([], "lists nothing"),
    ],
)
def test_a_stages_file_that_recomputes_an_unknown_submodule(
    run: Run, graph: Path, tmp_path: Path, recompute: object, part: str
) -> None:
    first, *rest = STAGES["stages"]
    (tmp_path / "stages.json").write_text(json.dumps(STAGES | {"stages": [first | {"recompute": recompute}, *rest]}))
    check(run("plan", graph, *ON, "--stages", tmp_path / "stages.json"), 2, part, "recompute")


@pytest.mark.parametrize(
    ("function", "part"),
    [("raising", "raised KeyError: 'a thing'"), ("leaving", "raised SystemExit"), ("not_a_model", "returned int")],
)
def test_a_users_function_that_does_not_return_a_model(run: Run, config: Path, function: str, part: str) -> None:
    check(run("plan", f"tiny.py:{function}", *ON), 2, f"'tiny.py:{function}'", part)


def test_a_users_function_that_does_not_exist(run: Run, config: Path) -> None:
    check(run("plan", "tiny.py:modell", *ON), 2, "no function 'modell'", "Did you mean 'model'?")


def test_an_unexpected_error_is_one_line_and_debug_shows_the_traceback(
    run: Run, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphpipe.cli.plan.make_plan", len)
    check(
        run("plan", graph, *ON),
        4,
        "unexpected TypeError: object of type 'Namespace' has no len()",
        "report it",
        "GRAPHPIPE_DEBUG=1",
    )
    monkeypatch.setenv("GRAPHPIPE_DEBUG", "1")
    assert "Traceback" in run("plan", graph, *ON).err


def test_an_interrupt_exits_with_130(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphpipe.cli.plan.make_plan", interrupt)
    assert main(["plan", str(graph), *ON]) == 130


def test_amounts_without_a_bound_are_refused(run: Run, graph: Path, plan_file: Path) -> None:
    """`plan` did not end, and `simulate` took all memory."""
    check(run("plan", graph, "--cluster", "summit:1x4", "--batch", "1000000000000"), 2, "batch", "16,777,216 samples")
    text = plan_file.read_text()
    body = json.loads(text)
    body["plan"]["batch_size"] = 10**18
    plan_file.write_text(json.dumps(body))
    check(run("simulate", plan_file), 2, "plan.json", "micro-batches in all stages, must have at most 524,288")


def test_a_path_without_its_ending_is_refused_with_a_sentence(run: Run, tmp_path: Path) -> None:
    """It printed a TypeError of Python's imports."""
    (tmp_path / "x.py").write_text("def y(): ...\n")
    check(run("plan", f"{tmp_path}/x:y", *ON), 2, "is neither a module nor a file", "x.py:FUNCTION")
    check(run("plan", "./x:y", *ON), 2, "is neither a module nor a file")


def test_control_characters_in_names_do_not_reach_the_terminal(run: Run, graph: Path, plan_file: Path) -> None:
    ran = run("plan", graph, *ON, "--planner", "\x1b[2Jgraph")
    assert "\x1b" not in ran.err
    assert "\\x1b[2Jgraph" in ran.err
    body = json.loads(plan_file.read_text())
    body["plan"]["stages"][0]["name"] = "\x1b[2J"
    plan_file.write_text(json.dumps(body))
    check(run("simulate", plan_file), 2, "'\\x1b[2J' has control characters")
