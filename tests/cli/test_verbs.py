"""The output and the files of the verbs, for valid input."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import parallel_work
import pytest
from aceso_folder import PLAN, write_folder
from cli_cases import STAGES, Run
from rich.console import Console

from graphpipe.cli import compare
from graphpipe.costs import CostTable
from graphpipe.files.json_body import to_body
from graphpipe.graph import Graph
from graphpipe.plans import Plan
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator import step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace

FIGURES = {
    *("planner", "search_seconds", "stages", "depth", "micro_batch", "step_seconds", "samples_per_second"),
    *("bubble_fraction", "gap_percent", "gap_covers", "peak_bytes"),
}
DATA = Path(__file__).parents[3] / "shared" / "data"


def test_plan_prints_one_object_that_agrees_with_the_file(run: Run, graph: Path, tmp_path: Path) -> None:
    ran = run("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--json", "-o", tmp_path / "plan.json")
    assert ran.code == 0
    assert ran.json.keys() >= FIGURES
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.prediction is not None
    assert ran.json["stages"] == len(plan.stages) == len(ran.json["stage_list"])
    assert ran.json["step_seconds"] == plan.prediction.step_seconds
    assert ran.json["samples_per_second"] == pytest.approx(16 / plan.prediction.step_seconds)
    assert len(ran.json["peak_bytes"]) == 4
    assert "stage" in ran.err  # the table goes where the object is not


def test_plan_shows_a_table_and_a_timeline(run: Run, graph: Path) -> None:
    ran = run("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--planner", "spp", "--timeline")
    assert (ran.code, ran.err) == (0, "")
    assert "two-branches on summit:1x4: mini-batch 16" in ran.out
    assert "spp:" in ran.out
    assert "one character is" in ran.out


def test_plan_of_hand_written_stages(run: Run, graph: Path, tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text(json.dumps(STAGES))
    ran = run("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--stages", tmp_path / "stages.json", "--json")
    assert ran.code == 0
    assert (ran.json["planner"], ran.json["stages"], ran.json["depth"], ran.json["micro_batch"]) == ("hand", 3, 2, 2)
    assert ran.json["unused_devices"] == ["node0/v100-3"]
    assert "1 device is left unused: node0/v100-3" in ran.err


def test_a_stages_file_says_what_is_recomputed(run: Run, graph: Path, tmp_path: Path) -> None:
    first, second, join = STAGES["stages"]
    stages = [first | {"recompute": "full"}, second | {"recompute": ["right.*"]}, join]
    (tmp_path / "stages.json").write_text(json.dumps(STAGES | {"stages": stages}))
    words = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--stages", tmp_path / "stages.json", "--json")
    ran = run(*words, "-o", tmp_path / "plan.json")
    assert ran.code == 0
    recomputed = [stage["recompute"] for stage in ran.json["stage_list"]]
    assert recomputed == ["full", ran.json["stage_list"][1]["ops"], "none"]
    assert [to_body(stage)["recompute"] for stage in Plan.load(tmp_path / "plan.json").stages] == recomputed
    (tmp_path / "stages.json").write_text(json.dumps(STAGES))
    assert run(*words).json["step_seconds"] < ran.json["step_seconds"]


def test_plan_with_costs_from_a_file(run: Run, plan_file: Path, graph: Path, tmp_path: Path) -> None:
    costs = Plan.load(plan_file).costs
    costs.save(tmp_path / "costs.json")
    words = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--json")
    with_file = run(*words, "--costs", tmp_path / "costs.json").json
    assert with_file["step_seconds"] == run(*words).json["step_seconds"]


def test_simulate_predicts_what_the_plan_says(run: Run, plan_file: Path, tmp_path: Path) -> None:
    ran = run("simulate", plan_file, "-o", tmp_path / "trace.json", "--chrome", tmp_path / "chrome.json", "--json")
    assert ran.code == 0
    plan, trace = Plan.load(plan_file), Trace.load(tmp_path / "trace.json")
    assert plan.prediction is not None
    assert ran.json["step_seconds"] == trace.step_seconds == plan.prediction.step_seconds
    assert tuple(ran.json["peak_bytes"]) == plan.prediction.peak_bytes
    assert json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]


def test_loads_are_planned_saved_and_predicted(run: Run, graph: Path, tmp_path: Path) -> None:
    words = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--schedule", "1f1b", "--json")
    plain = run(*words)
    loaded = run(*words, "--load", "left=1:1,7:1", "--load", "right.*=0,2", "-o", tmp_path / "plan.json")
    assert (plain.code, loaded.code) == (0, 0)
    plan = Plan.load(tmp_path / "plan.json")
    assert [(load.name, load.mean) for load in plan.costs.loads] == [("left", 4.0), ("right.*", 1.0)]
    devices = {op: stage.degree for stage in plan.stages for op in stage.ops}
    assert devices["left.0"] > 1
    assert plan.prediction is not None
    assert plan.prediction.step_seconds > step_seconds(plan) > plain.json["step_seconds"]
    ran = run("simulate", tmp_path / "plan.json", "--json", "-o", tmp_path / "trace.json")
    assert ran.json["step_seconds"] == plan.prediction.step_seconds
    assert Trace.load(tmp_path / "trace.json") == simulate(plan)


def test_compare_gives_a_row_per_planner(run: Run, graph: Path) -> None:
    ran = run("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--planners", "graphpipe,spp", "--json")
    assert ran.code == 0
    rows = {row["planner"]: row for row in ran.json["rows"]}
    assert list(rows) == ["graphpipe", "spp"]
    assert all(row.keys() >= FIGURES and row["status"] == "ok" for row in rows.values())
    assert rows["graphpipe"]["step_seconds"] <= rows["spp"]["step_seconds"]
    assert "against best" in ran.err


def test_compare_names_the_planners_that_it_leaves_out(run: Run, graph: Path) -> None:
    """EdgePipe was missing without a word."""
    ran = run("compare", graph, "--cluster", "summit:1x2", "--batch", 4)
    assert ran.code == 0, ran.err
    last = ran.out.splitlines()[-1]
    assert last == "without edgepipe, which plans inference: graphpipe plan --inference --planner edgepipe"


def test_compare_draws_the_step_of_every_plan(run: Run, graph: Path) -> None:
    words = ("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--planners", "spp,graphpipe,piper")
    ran = run(*words, "--timeline")
    assert ran.code == 0
    _, first, second, third = re.split(r"\n(?:spp|graphpipe|piper)\n", ran.out)
    for picture in (first, second, third):
        assert re.match(r"s0( \+ s\d)*( × \d)?  +0", picture.splitlines()[0])
        assert "one character is" in picture
    assert "one character is" not in run(*words).out


@pytest.mark.parametrize(("verb", "width"), [("plan", 60), ("simulate", 60), ("simulate", 100), ("compare", 100)])
def test_timelines_fit_the_terminal(
    verb: str, width: int, run: Run, graph: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("graphpipe.cli.output.NOT_A_TERMINAL_WIDTH", width)
    on = (graph, "--cluster", "summit:1x4", "--batch", 16)
    words = {
        "plan": ("plan", *on),
        "simulate": ("simulate", plan_file),
        "compare": ("compare", *on, "--planners", "spp"),
    }
    ran = run(*words[verb], "--timeline")
    rows = [line for line in ran.out.splitlines() if re.match(r"s\d( \+ s\d)*( × \d)? +[\da-j.=]{9,}$", line)]
    assert rows
    assert {len(row) for row in rows} == {width}


def test_a_terminal_shows_a_colour_per_stage(plan_file: Path) -> None:
    plan = Plan.load(plan_file)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=60)
    with terminal.capture() as capture:
        terminal.print(timeline(simulate(plan), 60))
    assert len(set(re.findall(r"\x1b\[(3\d)m", capture.get()))) == len(plan.stages)


def test_compare_stops_a_planner_at_its_time_limit(run: Run, graph: Path) -> None:
    words = ("compare", graph, "--cluster", "summit:8x8", "--batch", 512, "--planners", "graphpipe")
    ran = run(*words, "--search-seconds", 0.001, "--json")
    assert ran.code == 0
    assert [(row["status"], row["step_seconds"]) for row in ran.json["rows"]] == [("timeout", None)]
    assert "graphpipe: no plan within 1.00 ms" in ran.err


def test_compare_has_a_row_for_a_planner_that_fails(run: Run, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_search", parallel_work.search)
    words = ("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--json")
    ran = run(*words, "--planners", "spp,graphpipe,piper")
    assert ran.code == 0
    assert [(row["status"], row["reason"]) for row in ran.json["rows"]] == [
        ("failed", "RuntimeError: no luck"),
        ("ok", None),
        ("failed", "its process died with code 9"),
    ]
    assert "spp: RuntimeError: no luck" in ran.err
    assert run(*words, "--planners", "spp,piper").code == 4


def test_compare_says_who_does_not_follow_a_setting(run: Run, graph: Path) -> None:
    words = ("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--planners", "graphpipe,spp,gpipe", "--json")
    ran = run(*words, "--offload-to", "neighbours", "--stages-per-device", 1)
    assert [row["status"] for row in ran.json["rows"]] == ["ok"] * 3
    assert "without --offload-to, which they do not follow: gpipe" in ran.err
    assert "--stages-per-device" not in ran.err


def test_verbs_say_what_a_weight_policy_costs(run: Run, graph: Path, tmp_path: Path) -> None:
    words = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "-o", tmp_path / "plan.json")
    planned = run(*words, "--weights", "predict", "--predictor", "pipeoptim", "--json")
    assert planned.code == 0
    assert (planned.json["weights"], planned.json["predictor"]) == ("predict", "pipeoptim")
    assert planned.json["steady_seconds"] <= planned.json["step_seconds"]
    assert len(planned.json["delay_updates"]) == len(planned.json["versions"]) == planned.json["stages"]
    assert "which pipeoptim predicts ahead" in planned.err
    other = run(
        "simulate",
        tmp_path / "plan.json",
        "--weights",
        "stash",
        "--mini-batches",
        3,
        "--timeline",
        "--json",
        "--gradients-apart",
    )
    assert other.code == 0
    assert other.json["gradients_apart"]["period_seconds"] <= 1.05 * other.json["steady_seconds"]
    assert "as the stages of the plan; weights are up to" in other.err
    assert other.json["weights"] == "stash"
    assert "in the steady state" in other.err
    page = tmp_path / "report.html"
    assert run("report", tmp_path / "plan.json", "--weights", "double-buffer", "-o", page).code == 0
    assert run("simulate", tmp_path / "plan.json", "--weights", "predict").code == 2
    assert run("simulate", tmp_path / "plan.json", "--mini-batches", 0).code == 2


def test_compare_has_a_row_for_each_weight_policy(run: Run, graph: Path) -> None:
    words = ("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--planners", "pipedream,graphpipe")
    ran = run(*words, "--weights", "flush,stash", "--json")
    assert ran.code == 0
    rows = [(row["planner"], row["weights"], row["steady_seconds"] is None) for row in ran.json["rows"]]
    assert rows == [
        ("pipedream", "flush", True),
        ("graphpipe", "flush", True),
        ("pipedream", "stash", False),
        ("graphpipe", "stash", False),
    ]
    assert "delay" in ran.err
    assert run(*words, "--weights", "flush", "--predictor", "xpipe").code == 2


def test_import_reads_a_pipedream_profile(run: Run, tmp_path: Path) -> None:
    profile = DATA / "pipedream" / "vgg16.graph.txt"
    if not profile.exists():
        pytest.skip(f"{profile} is not here")
    ran = run("import", profile, "--format", "pipedream", "-o", tmp_path / "vgg16.json", "--json")
    assert ran.code == 0
    assert ran.json["operators"] == len(Graph.load(tmp_path / "vgg16.json").ops)
    planned = run("plan", tmp_path / "vgg16.json", "--cluster", "summit:1x4", "--batch", 64, "--json")
    assert planned.json["stages"] >= 1


def test_import_reads_a_folder_of_aceso(run: Run, tmp_path: Path) -> None:
    ran = run("import", write_folder(tmp_path / "in"), "--format", "aceso", "-o", tmp_path / "out", "--json")
    assert ran.code == 0
    (plan,) = ran.json["plans"]
    assert (plan["name"], plan["stages"]) == (PLAN, 2)
    assert run("simulate", tmp_path / "out" / PLAN / "plan.json").code == 0
    graph, costs, cluster, _ = plan["files"]
    planned = run("plan", graph, "--costs", costs, "--cluster", cluster, "--batch", 8, "--json")
    assert planned.code == 0


def test_profile_measures_a_function_of_the_users(run: Run, config: Path, tmp_path: Path) -> None:
    ran = run("profile", "tiny.py:model", "--cluster", "local:2", "-o", tmp_path / "costs.json", "--json")
    assert ran.code == 0
    costs = CostTable.load(tmp_path / "costs.json")
    assert ran.json["operators"] == len(costs.rows) > 0
    assert {row.source for row in costs.rows} == {"profiled"}
    planned = run("plan", "tiny.py:model", "--cluster", "local:2", "--batch", 8, "--costs", tmp_path / "costs.json")
    assert planned.code == 0


PAIR = """
import torch
from torch import nn

def model():
    pair = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return nn.Sequential(pair, nn.LayerNorm(8)), {"input": torch.zeros(4, 8)}
"""


@pytest.mark.slow
def test_profile_measures_what_devices_share(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair of layers becomes one operator. A plan without `--tensor` by the same costs must find the same one."""
    monkeypatch.chdir(tmp_path)
    Path("pair.py").write_text(PAIR)
    ran = run("profile", "pair.py:model", "--cluster", "local:2", "--samples", "1,2", "--tensor", "1,2", "-o", "c.json")
    assert ran.code == 0, ran.err
    assert "1 of them also as each of 2 devices shares them" in ran.out
    for tensor in ((), ("--tensor", "2")):
        planned = run("plan", "pair.py:model", "--cluster", "local:2", "--batch", 4, "--costs", "c.json", *tensor)
        assert planned.code == 0, planned.err


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from graphpipe.cli.main import main; "
        "code = main(['--help']); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("plan", "compare", "simulate", "train", "profile", "import"):
        assert f"\n    {verb} " in done.stdout


def test_a_closed_pipe_is_not_an_error(plan_file: Path, graph: Path) -> None:
    command = f"{sys.executable} -m graphpipe simulate {plan_file} --timeline | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_plan_chooses_a_schedule_when_asked(run: Run, graph: Path) -> None:
    on = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--json")
    plain, chosen = (run(*on, "--schedule", name).json for name in ("1f1b", "auto"))
    assert chosen["step_seconds"] <= plain["step_seconds"]


SPLITTABLE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times, self.layer = times, nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return x


def model():
    return nn.Sequential(*(Block(times) for times in (1, 2, 1))), {"x": torch.randn(4, 8)}
"""


def test_plan_shows_which_backwards_are_split(run: Run, tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(SPLITTABLE)
    stages = [{"ops": [str(at)], "devices": [at], "micro_batch": 2} for at in range(3)]
    document = {"graphpipe": "stages", "schema_version": 1, "schedule": "zb-h1", "stages": stages}
    (tmp_path / "stages.json").write_text(json.dumps(document))
    words = ("plan", f"{tmp_path / 'blocks.py'}:model", "--cluster", "local:3", "--batch", 8)
    ran = run(*words, "--stages", tmp_path / "stages.json", "--json")
    assert ran.code == 0, ran.err
    assert [stage["backward"] for stage in ran.json["stage_list"]] == ["auto", "whole", "auto"]
    rows = [line for line in ran.err.splitlines() if re.match(r"s\d ", line)]
    assert [row.split()[-1] for row in rows] == ["whole", "whole", "halves"]
    stages[2]["backward"] = "whole"
    (tmp_path / "stages.json").write_text(json.dumps(document))
    ran = run(*words, "--stages", tmp_path / "stages.json", "--json")
    assert [stage["backward"] for stage in ran.json["stage_list"]] == ["auto", "whole", "whole"]
