"""The command line of the benchmarks: each shows its help, and refuses what it does not know by name."""

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest

from bench.__main__ import BY_NAME, MODULES, main, overview
from bench.options import parser

ROOT = Path(__file__).parents[2]


def example(
    names: Annotated[Sequence[str], ("left", "right")] = (),
    *,
    together: Annotated[int, range(1, 5)] = 2,
    again: tuple[int, int] = (0, -1),
    redo: bool = False,
) -> None:
    """Do nothing.

    Args:
        names: of what is done; without names,
            all.
        together: 50 % of the cores.
        again: first and last.
        redo: do it again.
    """


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_shows_its_help_and_refuses_an_unknown_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown, text = capsys.readouterr().out, import_module(f"bench.{MODULES[name]}").__doc__ or ""
    assert shown.startswith(f"usage: python -m bench {name} [-h]")
    assert text.splitlines()[0] in shown
    with pytest.raises(SystemExit) as ended:
        main([name, "--no-such-option"])
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_options_are_read_from_the_parameters() -> None:
    words = parser("example", example)
    assert vars(words.parse_args([])) == {"names": (), "together": 2, "again": (0, -1), "redo": False}
    read = words.parse_args(["left", "right", "--together", "4", "--again", "3", "7", "--redo"])
    assert vars(read) == {"names": ["left", "right"], "together": 4, "again": [3, 7], "redo": True}
    assert "of what is done; without names, all." in words.format_help()
    assert "50 % of the cores." in words.format_help()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lefft"], "'lefft' is not known; known: left, right"),
        (["--together", "5"], "argument --together: '5' is not from 1 to 4"),
        (["--together", "two"], "argument --together: invalid int value: 'two'"),
        (["--again", "1"], "argument --again: expected 2 arguments"),
    ],
)
def test_what_a_benchmark_does_not_take_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser("example", example).parse_args(words)
    assert message in capsys.readouterr().err


def test_of_many_names_those_that_resemble_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["families", "llamma"])
    assert "'llamma' is not known; similar: llama, " in capsys.readouterr().err


def test_an_unknown_benchmark_is_refused_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-benchmark"]) == 2
    assert "unknown benchmark 'no-such-benchmark'; known: planning, figure6" in capsys.readouterr().err
    shown = overview()  # reads every benchmark
    assert all(re.search(rf"^  {name} +\S", shown, re.MULTILINE) for name in MODULES)
    assert set(BY_NAME) < set(MODULES)


def test_a_benchmark_runs_from_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "zero_bubble", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "usage: python -m bench zero-bubble" in done.stdout


@pytest.mark.parametrize(
    "page", ["Makefile", "CONTRIBUTING.md", "README.md", "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
def test_the_pages_name_benchmarks_that_exist(page: str | Path) -> None:
    named = re.findall(r"(?:make bench-|python -m bench )([a-z][\w-]*)", (ROOT / page).read_text(encoding="utf-8"))
    assert {name.replace("_", "-") for name in named} <= MODULES.keys()
