"""`graphpipe report`: the files that it reads, writes and refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Part, make_plan
from cli_cases import Run

from graphpipe.cli.report_files import prediction_beside
from graphpipe.plans import Plan
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace


@pytest.fixture
def trace_file(run: Run, plan_file: Path, tmp_path: Path) -> Path:
    """Return the predicted trace of the plan file."""
    assert run("simulate", plan_file, "-o", tmp_path / "trace.json").code == 0
    return tmp_path / "trace.json"


def test_a_plan_is_reported_with_its_predicted_step(run: Run, plan_file: Path, tmp_path: Path) -> None:
    ran = run("report", plan_file, "-o", tmp_path / "report.html", "--json")
    assert ran.code == 0
    shows = ["Stages", "Timeline", "Why it takes this long", "Memory", "Model", "Where this comes from"]
    assert ran.json["shows"] == shows
    assert ran.json["plan_hash"] == Plan.load(plan_file).fingerprint
    assert ran.json["plan_hash"] in (tmp_path / "report.html").read_text()


def test_a_trace_with_and_without_its_plan(run: Run, plan_file: Path, trace_file: Path, tmp_path: Path) -> None:
    alone = run("report", trace_file, "-o", tmp_path / "report.html")
    assert alone.code == 0
    assert alone.out.endswith("report.html: Timeline, Memory, Where this comes from\n")
    both = run("report", trace_file, plan_file, "-o", tmp_path / "report.html")
    assert "Stages, Timeline" in both.out


def test_a_rehearsal_is_compared_with_the_prediction(
    run: Run, plan_file: Path, trace_file: Path, tmp_path: Path
) -> None:
    content = json.loads(trace_file.read_text()) | {"source": "emulated"}
    (tmp_path / "emulated.json").write_text(json.dumps(content))
    ran = run("report", plan_file, tmp_path / "emulated.json", "-o", tmp_path / "report.html", "--json")
    assert "Predicted against measured" in ran.json["shows"]


def test_planners_from_compare(run: Run, graph: Path, plan_file: Path, tmp_path: Path) -> None:
    words = ("compare", graph, "--cluster", "summit:1x4", "--batch", 16, "--planners", "graphpipe,spp", "--json")
    (tmp_path / "compare.json").write_text(run(*words).out)
    report = ("report", plan_file, "-o", tmp_path / "report.html", "--json", "--compare", tmp_path / "compare.json")
    assert "Planners" in run(*report).json["shows"]
    assert "spp" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(run: Run, plan_file: Path, tmp_path: Path, suffix: str) -> None:
    ran = run("report", plan_file, "-o", tmp_path / f"report.{suffix}", "--json")
    assert (ran.code, ran.json["shows"]) == (0, ["stage graph", "timeline"])
    assert (tmp_path / f"report.{suffix}").stat().st_size > 5_000


def test_only_the_mermaid_chart_goes_to_standard_output(run: Run, plan_file: Path) -> None:
    ran = run("report", plan_file, "--mermaid")
    assert ran.code == 0
    assert ran.out.startswith("flowchart TD\n")
    assert ran.out.count("[") == len(Plan.load(plan_file).stages)


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_shows_its_training(run: Run, config: Path, tmp_path: Path) -> None:
    trained = run("train", config, "--json")
    assert trained.code == 0
    directory = Path(trained.json["directory"])
    ran = run("report", directory, "-o", tmp_path / "report.html", "--json")
    assert ran.code == 0
    assert {"Predicted against measured", "Training"} <= set(ran.json["shows"])
    text = (tmp_path / "report.html").read_text()
    assert "train.batch_size" in text
    # A run that was cut short while it wrote its sixth step, before it measured.
    (directory / "trace-measured.json").unlink()
    log = directory / "metrics.jsonl"
    log.write_text(log.read_text()[:-20])
    ran = run("report", directory, "-o", tmp_path / "report.html", "--json")
    assert ran.code == 0
    assert "Training" in ran.json["shows"]
    assert "Predicted against measured" not in ran.json["shows"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["PLAN"], "nothing to write"),
        (["PLAN", "-o", "report.jpg"], "ends with none of .html, .png, .svg, .pdf"),
        (["PLAN", "PLAN", "-o", "report.html"], "a second plan"),
        (["missing.json", "-o", "report.html"], "cannot read"),
        (["GRAPH", "-o", "report.html"], "is a graphpipe graph file, not a plan or a trace"),
        (["EMPTY", "-o", "report.html"], "has no plan.json"),
        (["TRACE", "--mermaid"], "a trace has no stage graph"),
        (["PLAN", "-o", "report.html", "--compare", "PLAN"], "has no rows"),
        (["PLAN", "-o", "report.html", "--compare", "ROWS"], "field status"),
    ],
)
def test_files_that_cannot_be_reported(
    run: Run, graph: Path, plan_file: Path, trace_file: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.json").write_text('{"rows": [{"planner": "spp"}]}')
    files = {"PLAN": plan_file, "GRAPH": graph, "TRACE": trace_file}
    files |= {"EMPTY": tmp_path / "empty", "ROWS": tmp_path / "rows.json"}
    ran = run("report", *(files.get(word, word) for word in words))
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert not Path("report.html").exists()


def in_a_process(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_other_verbs_start_without_the_drawing_libraries() -> None:
    done = in_a_process("import sys, graphpipe.cli; sys.exit(any(x in sys.modules for x in ('plotly', 'matplotlib')))")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("forked_ranks")
def test_a_missing_library_is_named_with_the_remedy(plan_file: Path, tmp_path: Path) -> None:
    words = ["report", str(plan_file), "-o", str(tmp_path / "report.html")]
    without = "import sys; sys.modules['plotly'] = None; from graphpipe.cli.main import main; "
    done = in_a_process(f"{without} sys.exit(main({words!r}))")
    assert done.returncode == 2
    assert "which draws, is not installed. Install it: pip install 'graphpipe-torch[report]'." in done.stderr
    assert not (tmp_path / "report.html").exists()
    mermaid = in_a_process(f"{without} sys.exit(main({[*words[:2], '--mermaid']!r}))")
    assert mermaid.returncode == 0
    assert mermaid.stdout.startswith("flowchart TD")


def test_two_plans_are_laid_side_by_side(run: Run, graph: Path, plan_file: Path, tmp_path: Path) -> None:
    words = ("plan", graph, "--cluster", "summit:1x4", "--batch", 16, "--planner", "spp", "-o", tmp_path / "chain.json")
    assert run(*words).code == 0
    assert run("simulate", tmp_path / "chain.json", "-o", tmp_path / "chain-trace.json").code == 0
    page = tmp_path / "both.html"
    ran = run("report", plan_file, tmp_path / "chain-trace.json", tmp_path / "chain.json", "-o", page, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["shows"] == ["What differs", "Stages", "Timelines", "Memory"]
    assert list(ran.json["plan_hashes"]) == [plan_file.stem, "chain"]
    text = page.read_text()
    assert f"<h1>{plan_file.stem} against chain</h1>" in text
    assert "spp" in text
    refused = run("report", plan_file, tmp_path / "chain.json", "--mermaid")
    assert refused.code == 2
    assert "2 plans have 2 stage graphs. Give one plan, or -o comparison.html" in refused.err
    for suffix, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        picture = tmp_path / f"both.{suffix}"
        ran = run("report", plan_file, tmp_path / "chain.json", "-o", picture, "--json")
        assert ran.json["shows"] == [f"stages of {plan_file.stem}", "stages of chain", "timeline"]
        first = picture.read_bytes()
        assert first.startswith(start)
        assert run("report", plan_file, tmp_path / "chain.json", "-o", picture).code == 0
        assert picture.read_bytes() == first
    second = tmp_path / "chain-trace.json"
    refused = run("report", plan_file, tmp_path / "chain.json", second, second, "-o", page)
    assert (refused.code, "a second predicted" in refused.err) == (2, True)


def test_a_run_without_a_flush_is_compared_with_as_many_mini_batches() -> None:
    """Four predicted mini-batches stood beside twenty measured ones."""
    plan = with_policy(make_plan([Part(), Part()], batch_size=4), "stash")
    measured = replace(simulate(plan, mini_batches=7), source="measured")
    predicted = simulate(plan)
    assert predicted.batch_size != measured.batch_size == 7 * plan.batch_size
    found = prediction_beside(plan, predicted, measured)
    assert (found.source, found.batch_size) == ("simulated", measured.batch_size)
    assert found.step_seconds == pytest.approx(measured.step_seconds)
    assert prediction_beside(plan, found, measured) is found
    assert prediction_beside(plan, predicted, None) is predicted


def test_the_trace_of_a_rehearsal_belongs_to_its_plan(run: Run, tmp_path: Path) -> None:
    plan = make_plan([Part(), Part()], batch_size=2)
    plan.save(tmp_path / "plan.json")
    words = ("--steps", 1, "--scale", 0.02)
    assert run("rehearse", tmp_path / "plan.json", *words, "-o", tmp_path / "trace.json").code == 0
    ran = run("report", tmp_path / "plan.json", tmp_path / "trace.json", "-o", tmp_path / "page.html", "--json")
    assert "Predicted against measured" in ran.json["shows"]
    trace = Trace.load(tmp_path / "trace.json")
    assert trace.step_seconds == pytest.approx(simulate(plan).step_seconds, rel=0.6)
    assert "A rehearsal took 0.02 times as long as planned" in (tmp_path / "page.html").read_text()
