"""The example at the end of every verb's `--help` works when it is pasted."""

import argparse
import os
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from textwrap import dedent

import pytest
from cli_cases import Run

from graphpipe.cli.arguments import EXAMPLE
from graphpipe.cli.main import VERBS, make_parser

EXAMPLES = Path(__file__).parents[2] / "examples"
LEAVES = {
    "demo": ["runs/graph-against-chain.html"],
    "init": ["my-project/task.py", "runs/train-1/metrics.json"],
    "plan": ["plan.json"],
    "simulate": ["trace.json"],
    "train": ["runs/digits-1/metrics.json"],
    "infer": ["answers.jsonl"],
    "place": ["placed.json"],
    "export": ["model.safetensors", "pipeline.py"],
    "profile": ["costs.json"],
    "rehearse": ["trace.json", "report.html"],
    "report": ["report.html"],
    "import": ["graph.json"],
}
"""The files that each example writes."""


def example(verb: str) -> list[str]:
    """Return the lines of a verb's example as its help shows them."""
    (verbs,) = (action for action in make_parser()._actions if isinstance(action.choices, dict))
    assert isinstance(verbs.choices, dict)
    parser = verbs.choices[verb]
    assert isinstance(parser, argparse.ArgumentParser)
    _, _, lines = parser.format_help().partition(f"\n{EXAMPLE}\n")
    return dedent(lines).splitlines()


def in_bash(lines: list[str], folder: Path) -> None:
    """Run lines in bash, with a command `graphpipe` that is this one."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "graphpipe"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m graphpipe "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join(["set -e", *lines])
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder where all examples run, as they would for a reader: what one has done need not be repeated."""
    made = tmp_path_factory.mktemp("examples")
    (made / "examples").symlink_to(EXAMPLES)
    return made


LONG = {"demo", "init", "tune", "profile", "check"}
"""Verbs whose examples take long: `test_demo`, `test_init`, `test_verbs`, `test_check` and `training/tune` try them."""
DONE: set[str] = set()
"""Commands that have run already."""


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow) if verb in LONG else verb for verb in VERBS]
)
def test_the_example_of_a_verb_works(verb: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    lines = example(verb)
    assert any(f"graphpipe {verb}" in line for line in lines)
    for ours, group in groupby(lines, lambda line: line.startswith("graphpipe ")):
        if ours:  # in this process, which has imported torch already
            for line in group:
                if line not in DONE:
                    ran = run(*shlex.split(line)[1:])
                    assert ran.code == 0, ran.err
                    DONE.add(line)
        else:
            in_bash(list(group), folder)
    for name in LEAVES.get(verb, []):
        assert (folder / name).stat().st_size > 0
