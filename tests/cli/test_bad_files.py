"""Files with common mistakes, for every verb that reads them: one sentence with place and remedy, and exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import CONFIG, TASK, Run

Change = Callable[[Any], object]
ON = ("--cluster", "summit:1x4", "--batch", "16")
COSTS = "forward_compute_time=3.0, backward_compute_time=6.0, activation_size=512.0, parameter_size=64.0"
PROFILE = "".join(f"node{number} -- Linear -- {COSTS}\n" for number in (1, 2, 3)) + "\tnode1 -- node2\n"
REMEDIES = (
    *("Remove one of these edges.", "or remove the edge.", "List it once.", "Write one number", "Known: "),
    *("write it again.", "Write finite numbers.", "Write one whole number.", "Mend it there.", "or give 0."),
    *(
        "must be positive and finite",
        "Plan again, or correct the file.",
        "A node's costs read:",
        "A node reads:",
        "Add it.",
        "Write node numbers.",
    ),
)


def refused(ran: Any, *parts: str) -> None:
    """Check for exit code 2, nothing on standard output, and one sentence with these parts and a remedy."""
    assert ran.code == 2, (ran.code, ran.err)
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert line.startswith("graphpipe: error: ")
    assert "Traceback" not in line
    for part in parts:
        assert part in line
    assert any(remedy in line for remedy in REMEDIES), line


def rewrite(path: Path, change: Change) -> None:
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def cut(path: Path) -> None:
    path.write_text(path.read_text().rstrip()[:-20])


# --- import


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{PROFILE}\tnode2 -- node1\n", ("profile.txt", "cycle: node1 -> node2 -> node1")),
        (f"{PROFILE}\tnode2 -- node9\n", ("profile.txt, line 5", "names 'node9'")),
        (PROFILE.replace("parameter_size=64.0", "parameter_size=[64.0; big]"), ("line 1, parameter_size", "'big'")),
        (PROFILE.replace("parameter_size", "parameter_sizes"), ("line 1", "'parameter_sizes'", "'parameter_size'?")),
        (PROFILE.replace("512.0", "nan"), ("line 1, activation_size", "is nan")),
        (PROFILE[: len(PROFILE) // 3], ("profile.txt, line 2", "'node2' is not a node")),
    ],
)
def test_import_of_pipedreams_profiles(run: Run, tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    (tmp_path / "profile.txt").write_text(text)
    words = ("import", tmp_path / "profile.txt", "--format", "pipedream", "-o", tmp_path / "graph.json")
    refused(run(*words), *parts)
    assert not (tmp_path / "graph.json").exists()


def test_import_takes_lists_and_two_sinks_and_warns_of_units(run: Run, tmp_path: Path) -> None:
    # A node may have several outputs, and auxiliary heads are a second sink: both are planned.
    text = (PROFILE + "\tnode1 -- node3\n").replace("512.0", "[512.0; 64.0]").replace("3.0", "3000000.0")
    (tmp_path / "profile.txt").write_text(text)
    graph = tmp_path / "graph.json"
    ran = run("import", tmp_path / "profile.txt", "--format", "pipedream", "-o", graph)
    assert ran.code == 0
    sentence = "forward and backward of one batch sum to 9e+03 s. Are the times in another unit?"
    assert ran.err == f"graphpipe: warning: {tmp_path / 'profile.txt'}: {sentence}\n"
    planned = run("plan", graph, *ON, "--json")
    assert planned.code == 0
    assert f"{graph}: {sentence}" in planned.err
    assert {name for stage in planned.json["stage_list"] for name in stage["ops"]} == {"node1", "node2", "node3"}


def piper() -> dict[str, Any]:
    sizes = {"parameterSize": 64.0, "memoryUsageA": 96.0, "memoryUsageB": 1.0, "syncTimeFw": {}, "syncTimeBw": {}}
    variants = {"1": [{"id": "vanilla", "timePerSample": 0.3, **sizes}]}
    nodes = [{"id": number, "name": "Layer", "TMPCs": variants} for number in range(3)]
    edges = [{"sourceId": 0, "destId": to, "communicationCost": 8.0} for to in (1, 2)]
    return {"maxDevices": 2, "maxMemoryPerDevice": 1, "bandwidth": 1, "mbsInBatch": 4, "nodes": nodes, "edges": edges}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda body: body["edges"].append({"sourceId": 1, "destId": 0, "communicationCost": 1}), ("cycle: Layer.0",)),
        (lambda body: body["edges"][0].update(destId=7), ("edges.0.destId", "names node 7")),
        (lambda body: body["edges"][0].update(communicationCost=[1, 2]), ("edges.0.communicationCost", "[1, 2]")),
        (lambda body: body.update(bandwith=3), ("field bandwith", "unknown key", "Did you mean 'bandwidth'?")),
        (lambda body: body["edges"][0].update(communicationCost=float("nan")), ("NaN is not a JSON number",)),
        (None, ("not valid JSON", "line 1, column")),
    ],
)
def test_import_of_pipers_inputs(run: Run, tmp_path: Path, change: Change | None, parts: tuple[str, ...]) -> None:
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(piper()))
    rewrite(path, change) if change else cut(path)
    words = ("import", path, "--format", "piper", "-o", tmp_path / "graph.json")
    refused(run(*words), "piper.json", *parts)
    assert not (tmp_path / "graph.json").exists()


# --- plan


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda body: body["edges"].append({"source": "join", "target": "left.0"}), ("cycle: join -> left.0",)),
        (lambda body: body["edges"].append({"source": "join", "target": "nobody"}), ("names 'nobody'",)),
        (lambda body: body["ops"][0].update(parameter_bytes=[1, 2]), ("field ops.0.parameter_bytes", "[1, 2]")),
        (lambda body: body["ops"][0].update(parameter_byte=1), ("field ops.0.parameter_byte", "'parameter_bytes'?")),
        (lambda body: body["ops"][0]["work"].update(flops=1), ("field ops.0.work.flops", "Known: flops_per_sample")),
        (lambda body: body["ops"][0].update(parameter_bytes=float("nan")), ("NaN is not a JSON number",)),
        (lambda body: body["ops"][0].pop("name"), ("field ops.0.name", "Field required")),
        (None, ("not valid JSON", "line ", "column ")),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_plans_of_graph_files(run: Run, graph: Path, verb: str, change: Change | None, parts: tuple[str, ...]) -> None:
    rewrite(graph, change) if change else cut(graph)
    refused(run(verb, graph, *ON), "graph.json", *parts)


@pytest.mark.parametrize("planner", ["graphpipe", "spp", "pipedream", "gpipe"])
def test_a_graph_with_two_sinks_is_planned(run: Run, graph: Path, planner: str) -> None:
    rewrite(graph, lambda body: body["edges"].pop())
    ran = run("plan", graph, *ON, "--planner", planner, "--json")
    assert ran.code == 0, ran.err
    assert sum(len(stage["ops"]) for stage in ran.json["stage_list"]) == 5


def slow_costs(plan_file: Path, path: Path) -> Path:
    """Write the costs of a plan, as if milliseconds were seconds."""
    body = json.loads(plan_file.read_text())["plan"]["costs"]
    for row in body["rows"]:
        row["forward"]["lines"] = [[0.0, 1000.0]]
    path.write_text(json.dumps({"graphpipe": "costs", "schema_version": 1} | body))
    return path


def test_costs_in_another_unit_cause_a_warning(run: Run, graph: Path, plan_file: Path, tmp_path: Path) -> None:
    costs = slow_costs(plan_file, tmp_path / "costs.json")
    ran = run("plan", graph, *ON, "--costs", costs, "-o", tmp_path / "slow.json")
    assert ran.code == 0
    sentence = "forward and backward of one sample sum to 5e+03 s on v100. Are the times in another unit?"
    assert ran.err == f"graphpipe: warning: {costs}: {sentence}\n"
    assert sentence in run("simulate", tmp_path / "slow.json").err
    assert run("simulate", plan_file).err == ""


# --- simulate


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda plan: plan["graph"]["edges"].append({"source": "join", "target": "left.0"}), ("cycle: join",)),
        (lambda plan: plan["stages"][0]["ops"].append("nobody"), ("stage 's0'", "'nobody'")),
        (lambda plan: plan["stages"][0].update(micro_batch=[2]), ("plan.stages.0.micro_batch", "[2]")),
        (lambda plan: plan["stages"][0].update(device=[2]), ("plan.stages.0.device", "'devices'?")),
        (lambda plan: plan["stages"][0].update(devices=[9]), ("stage 's0'", "device 9")),
        (lambda plan: plan["cluster"]["intra_node"].update(latency=1), ("latency", "'latency_seconds'?")),
        (lambda plan: plan["costs"]["rows"][0]["forward"].update(lines=[[float("nan"), 1]]), ("NaN",)),
        (None, ("not valid JSON", "line ", "column ")),
    ],
)
@pytest.mark.parametrize("verb", ["simulate", "rehearse", "report"])
def test_plan_files(run: Run, plan_file: Path, verb: str, change: Change | None, parts: tuple[str, ...]) -> None:
    rewrite(plan_file, lambda body: change(body["plan"])) if change else cut(plan_file)
    more = ("-o", plan_file.parent / "report.html") if verb == "report" else ()
    refused(run(verb, plan_file, *more), "plan.json", *parts)


# --- train


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("steps = 6", "stepz = 6", ("tiny.toml", "unknown key 'train.stepz'", "Did you mean 'steps'?")),
        ("[plan]", "[plans]", ("tiny.toml", "unknown key 'plans'", "Did you mean 'plan'?")),
        ("= 16", "= [16]", ("tiny.toml, field train.batch_size", "[16]")),
        ("= 16", '= "16"', ("tiny.toml, field train.batch_size", "'16'")),
        ("= 16", "= true", ("tiny.toml, field train.batch_size", "True")),
        ("lr = 0.05", "lr = nan", ("tiny.toml, optimizer.lr", "is nan")),
        ("lr = 0.05\n", "lr = ", ("tiny.toml", "not valid TOML", "at end of document")),
    ],
)
def test_configurations(run: Run, config: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    assert old in CONFIG
    config.write_text(CONFIG.replace(old, new))
    refused(run("train", config), *parts)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"a": ["x"]', '"a": ["sum"]', ("cycle: a -> sum -> a",)),
        ('"sum": ["a", "b"]', '"sum": ["a", "bb"]', ("'bb' is missing", "the model takes x, y, bb")),
    ],
)
def test_declared_models_with_mistakes(run: Run, config: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    assert old in TASK
    Path("tiny.py").write_text(TASK.replace(old, new))
    ran = run("train", config)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert all(part in ran.err for part in parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda plan: plan["stages"][0]["ops"].append("nobody"), ("stage 's0'", "'nobody'")),
        (lambda plan: plan["stages"][0].update(micro_batch=[2]), ("plan.stages.0.micro_batch", "[2]")),
        (lambda plan: plan.update(stagess=[]), ("field plan.stagess", "Did you mean 'stages'?")),
        (lambda plan: plan["costs"]["rows"][0]["forward"].update(lines=[[float("nan"), 1]]), ("NaN",)),
        (None, ("not valid JSON", "line ", "column ")),
    ],
)
def test_plans_for_training(run: Run, config: Path, made: str, change: Change | None, parts: tuple[str, ...]) -> None:
    path = Path("plan.json")
    path.write_text(made)
    rewrite(path, lambda body: change(body["plan"])) if change else cut(path)
    refused(run("train", config, "--plan", path), "plan.json", *parts)
    assert not Path("runs").exists()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of a plan for the model of the configuration."""
    from graphpipe.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    (folder / "tiny.py").write_text(TASK)
    words = ["plan", f"{folder / 'tiny.py'}:model", "--cluster", "local:2", "--batch", "16"]
    assert main([*words, "-o", str(folder / "plan.json")]) == 0
    return (folder / "plan.json").read_text()
