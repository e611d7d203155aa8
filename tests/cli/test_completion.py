"""`graphpipe completion`: bash completes words with the script."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cli_cases import Run

from graphpipe.cli.completion import CLUSTERS, completion
from graphpipe.cli.main import VERBS, make_parser
from graphpipe.cluster import Cluster
from graphpipe.model.zoo import ZOO
from graphpipe.planners.registry import PLANNERS
from graphpipe.planning.choose_schedule import schedule_choices


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "graphpipe.bash"
    path.write_text(completion(make_parser(), "bash"))
    return path


def complete(script: Path, folder: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of these words, after `graphpipe`."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    words_so_far = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))'
    line = f'{words_so_far}; _shtab_graphpipe; printf "%s\\n" "${{COMPREPLY[@]}}"'
    command = ["bash", "-c", line, "bash", str(script), "graphpipe", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=100)
    return set(done.stdout.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text("")
    (tmp_path / "mine.json").write_text("")
    (tmp_path / "cluster.toml").write_text("")
    return tmp_path


def test_verbs(script: Path, folder: Path) -> None:
    assert complete(script, folder, "") == set(VERBS)
    assert complete(script, folder, "p") == {"place", "plan", "profile"}


def test_models_are_zoo_names_and_files(script: Path, folder: Path) -> None:
    names = {*ZOO, *(f"{name}-small" for name in ZOO)}
    assert complete(script, folder, "plan", "") == names | {"plan.json", "mine.json", "cluster.toml"}
    assert complete(script, folder, "compare", "m") == {"mmt", "mmt-small", "mine.json"}
    assert complete(script, folder, "profile", "dl") == {"dlrm", "dlrm-small"}


def test_planners_schedules_and_clusters(script: Path, folder: Path) -> None:
    on = ("plan", "mmt", "--cluster", "local:2")
    assert complete(script, folder, *on, "--planner", "") == set(PLANNERS)
    assert complete(script, folder, *on, "--planner", "pi") == {"pipedream", "pipedream-2bw", "piper"}
    assert complete(script, folder, *on, "--schedule", "") == set(schedule_choices())
    assert complete(script, folder, *on, "--objective", "b") == {"bottleneck"}
    assert complete(script, folder, "plan", "mmt", "--cluster", "") >= {*CLUSTERS, "cluster.toml"}


def test_a_list_of_planners(script: Path, folder: Path) -> None:
    assert complete(script, folder, "compare", "mmt", "--planners", "spp,dap") == {"spp,dapple"}


def test_files_and_options(script: Path, folder: Path) -> None:
    assert complete(script, folder, "simulate", "p") == {"plan.json"}
    assert complete(script, folder, "train", "c") == {"cluster.toml"}
    assert complete(script, folder, "simulate", "plan.json", "--t") == {"--timeline"}
    assert complete(script, folder, "plan", "mmt", "-o", "mi") == {"mine.json"}


def test_other_shells_get_the_same_words(run: Run) -> None:
    zsh, tcsh = (run("completion", shell) for shell in ("zsh", "tcsh"))
    assert zsh.code == tcsh.code == 0
    assert zsh.out.startswith("#compdef graphpipe")
    assert "complete graphpipe" in tcsh.out
    for words in (VERBS, PLANNERS, ZOO, schedule_choices()):
        assert all(word in zsh.out and word in tcsh.out for word in words)


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_clusters_exist(name: str) -> None:
    assert Cluster.resolve(name).devices


def test_an_unknown_shell(run: Run) -> None:
    ran = run("completion", "fish")
    assert ran.code == 2
    assert "'bash', 'zsh', 'tcsh'" in ran.err
