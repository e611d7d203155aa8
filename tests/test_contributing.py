"""What CONTRIBUTING says of adding something is true: the files to touch, and the test that adds one from outside."""

import argparse
import ast
import re
import tomllib
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphpipe.cli.arguments import Subparsers
from graphpipe.cli.main import VERBS, main
from graphpipe.model.zoo.registry import ZOO
from graphpipe.planners.registry import DEFAULT, PLANNERS
from graphpipe.run.weights.registry import DEFAULT_SYNC, REPLICA_SYNCS
from graphpipe.schedule.schedulers.registry import SCHEDULERS

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (?:a|an) ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_table_has_every_kind() -> None:
    kinds = {
        "planner",
        "schedule",
        "replica synchronisation",
        "model of the zoo",
        "verb",
        "panel",
        "export format",
        "backend",
        "kind of device",
    }
    assert {row[0].strip() for row in ROWS} == kinds


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_files_and_the_test_exist(row: tuple[str, str, str, str]) -> None:
    _, own, registry, proof = (cell.strip().strip("`") for cell in row)
    folder, name = own.rsplit("/", 1)
    assert "NAME" in name
    assert list((ROOT / folder).glob(name.replace("NAME", "*")))
    assert (ROOT / registry).exists()
    path, _, test = proof.partition("::")
    assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_files_of_ordinary_changes_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| change | files | which |")[2].partition("\n\n")[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|\.md)?)`", table)
    assert len(named) > 20
    for name in named:
        assert (ROOT / "graphpipe" / name).exists() or (ROOT / name).exists(), name


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that are not docstrings."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr):
            children = ast.iter_child_nodes(node)
            yield from (
                each.value for each in children if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


@cache
def code_by_path() -> dict[Path, str]:
    """Return the code of each module. Not at import: every worker collects every file."""
    return {path: path.read_text(encoding="utf-8") for path in (ROOT / "graphpipe").rglob("*.py")}


@cache
def texts_of(path: Path) -> set[str]:
    """Return the texts of a module."""
    return set(texts(ast.parse(code_by_path()[path])))


DEFAULTS = {DEFAULT, DEFAULT_SYNC, "1f1b"}
"""Settings and values have these names as their defaults."""
FORMATS = {"pipedream", "piper"}
"""`graphpipe import` reads profiles of these tools."""


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (PLANNERS.keys() - SCHEDULERS.keys() - DEFAULTS - FORMATS, "planners"),
        (SCHEDULERS.keys() - PLANNERS.keys() - DEFAULTS, "schedule"),
        (REPLICA_SYNCS.keys() - DEFAULTS, "run/weights"),
        (ZOO.keys(), "model/zoo"),
    ],
    ids=["planners", "schedules", "synchronisations", "models"],
)
def test_a_name_stands_only_in_its_own_file_and_the_registry(names: set[str], folder: str) -> None:
    for name in names:
        files = {path for path, code in code_by_path().items() if name in code and name in texts_of(path)}
        assert all(path.is_relative_to(ROOT / "graphpipe" / folder) for path in files), f"{name}: {sorted(files)}"
        assert len(files) <= 2, f"{name}: {sorted(files)}"


def test_a_verb_from_outside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def add(subparsers: Subparsers) -> None:
        subparsers.add_parser("greet").set_defaults(run=run)

    def run(args: argparse.Namespace) -> int:
        print("hello")
        return 0

    monkeypatch.setitem(VERBS, "greet", SimpleNamespace(add=add))
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_the_changelog_and_the_package_have_one_version() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings[0] == "Unreleased"
    releases = [re.fullmatch(r"(\d+\.\d+\.\d+) \((.*)\)", heading) for heading in headings[1:]]
    assert all(releases)
    dates = [date.fromisoformat(release[2]) for release in releases if release]
    assert dates == sorted(dates, reverse=True)
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert releases[0]
    assert releases[0][1] == package["version"]
    for text in re.split(r"^## .*$", page, flags=re.MULTILINE)[2:]:
        assert re.findall(r"^### (.*)$", text, re.MULTILINE) == ["Added", "Changed", "Fixed"]


def test_the_owners_of_code_own_paths_that_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    assert all((ROOT / path.strip("/")).exists() for path, *_ in rules[1:])
    assert all(owners and all(owner.startswith("@") for owner in owners) for _, *owners in rules)


def test_git_runs_what_make_lint_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"entry: (.*)", hooks) == ["make lint"]
