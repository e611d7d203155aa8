"""The graphs in the package are those of the zoo's models, and planning for them needs no torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from write_zoo_graphs import NAMES, new_zoo_graph

import graphpipe as gp
from graphpipe.cli.main import main
from graphpipe.zoo_graphs import find_zoo_graph, zoo_graph_names

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import sys
from graphpipe.cli.main import main
codes = [main(line.split()) for line in sys.argv[1:]]
assert codes == [0] * len(codes), codes
assert "torch" not in sys.modules
"""


LONG = ("attention-residuals-small", "densenet-small", "vision-language-small", "gpt", "dlrm", "candle-uno", "mmt")
CHECKED = [name for name in NAMES if name.endswith("-small") and name not in LONG]
CHECKED += [pytest.param(name, marks=pytest.mark.slow) for name in LONG]
"""The other large ones have the code of their small ones, and all files are written together."""


@pytest.mark.parametrize("name", CHECKED)
def test_the_package_has_the_graph_of_every_model_of_the_zoo(name: str) -> None:
    # After a change of the zoo or of the capture: make zoo-graphs. With a new torch, see CONTRIBUTING.md.
    kept = find_zoo_graph(name)
    assert kept
    assert kept == replace(new_zoo_graph(name, compare_modes=False), torch=kept.torch)


def test_every_file_is_of_a_model_of_the_zoo() -> None:
    assert zoo_graph_names() == sorted(NAMES)


def test_only_names_of_the_zoo_are_found() -> None:
    assert find_zoo_graph("mmt:small") == find_zoo_graph("mmt-small") != find_zoo_graph("mmt")
    for name in ("mmt-large", "../data/mmt", "", "mmt.json", str(ROOT / "graphpipe" / "zoo_graphs" / "data" / "mmt")):
        assert find_zoo_graph(name) is None


def test_the_graphs_serve_every_version_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # With torch 2.14, every `plan mmt` captured the model again, for five seconds: the file was of torch 2.13.
    kept = find_zoo_graph("mmt-small")
    for torch in ("2.11.0", "2.14.1+cu130", "not installed"):
        monkeypatch.setattr("graphpipe.versions.version", lambda _, torch=torch: torch)
        assert find_zoo_graph("mmt-small") == kept


def test_verbs_on_zoo_models_and_saved_files_do_not_import_torch(tmp_path: Path) -> None:
    found = find_zoo_graph("unet-small")
    assert found
    found.graph.save(tmp_path / "graph.json")
    options = "--cluster summit:1x6 --batch 12"
    lines = [
        f"plan mmt-small {options} --schedule zb-h1 -o {tmp_path}/plan.json",
        f"plan {tmp_path}/graph.json {options} --planner gpipe",
        f"compare dlrm-small {options} --planners gpipe",
        f"simulate {tmp_path}/plan.json -o {tmp_path}/trace.json",
        f"report {tmp_path}/plan.json {tmp_path}/trace.json --mermaid",
        f"report {tmp_path}/plan.json -o {tmp_path}/report.html",
        "completion bash",
    ]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *lines], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_plan_for_the_packages_graph_is_that_of_a_captured_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["plan", "candle-uno-small", "--cluster", "summit:1x6", "--batch", "12", "--schedule", "zb-h1"]
    assert main([*words, "--json", "-o", str(tmp_path / "first.json")]) == 0
    monkeypatch.setattr("graphpipe.cli.model_argument.find_zoo_graph", lambda _: None)
    assert main([*words, "--json", "-o", str(tmp_path / "second.json")]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first | {"search_seconds": 0} == second | {"search_seconds": 0}
    plans = [gp.Plan.load(tmp_path / f"{name}.json") for name in ("first", "second")]
    assert plans[0].graph == plans[1].graph
