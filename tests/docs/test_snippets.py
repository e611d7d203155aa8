"""Every command and snippet of README and documentation works as written, page by page in an empty folder.

A block with `title="FILE"` is written to that file; bash and python blocks run in order, all python of a page in one
session. `not-run="REASON"` marks commands that need what a test has not: they must at least parse. `text` is a
synopsis, whose verbs and options must be there, `console` what a command prints.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_shell import ROOT, prepare

from graphpipe.cli.main import VERBS, make_parser

BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if FENCE.search(page.read_text()))]
NOT_RUN = {"needs two hosts", "needs SLURM", "makes its environment"}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


def arguments_in(body: str) -> Iterator[list[str]]:
    """Yield what follows `graphpipe` on each line that is such a command, whatever starts it."""
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        starts = [number for number, word in enumerate(words) if word == "graphpipe"]
        if starts and (starts[0] == 0 or words[starts[0] - 1] == "-m"):
            yield words[starts[0] + 1 :]


def options_of(verb: str) -> set[str]:
    """Return the options of a verb."""
    subparsers = next(each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {option for action in subparsers.choices[verb]._actions for option in action.option_strings}


@pytest.mark.timeout(400)  # a page runs several commands, each a process of its own
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    environment = prepare(tmp_path)
    text = page.read_text()
    blocks = BLOCK.findall(text)
    assert 2 * len(blocks) == len(FENCE.findall(text)), "a block without a language"
    session: list[str] = []
    for language, options, body in blocks:
        if reason := re.search(r'not-run="([^"]*)"', options):
            assert reason[1] in NOT_RUN
            for words in arguments_in(body):
                _, rest = make_parser().parse_known_args(words)
                assert all("=" in word and word[0] != "-" for word in rest), rest
        elif title := re.search(r'title="([^"]*)"', options):
            (tmp_path / title[1]).write_text(body)
        elif language == "console":
            pass
        elif language == "text":
            for verb, *words in arguments_in(body):
                assert verb in VERBS
                assert {word.strip("[]") for word in words if word.strip("[").startswith("-")} <= options_of(verb)
        elif language == "bash":
            run(["bash", "-euc", body], tmp_path, environment)
        else:
            assert language == "python", f"a block of {language} is neither run nor written to a file"
            session.append(body)
    if session:
        run([sys.executable, "-c", "\n".join(session)], tmp_path, environment)


def test_what_is_not_run_is_a_target_of_make() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make (\w+)[ `]", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(named) <= targets


def test_the_slurm_script_is_bash_and_starts_training() -> None:
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert shlex.split(script.read_text().split("-m graphpipe")[1])[0] == "train"
