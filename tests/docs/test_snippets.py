"""Every command and snippet of the documentation works as written, page by page in an empty folder.

A block with `title="FILE"` is written to that file; bash and python blocks run in order. `not-run="REASON"` marks
commands that need what a test has not: of those, the verb after `graphpipe` must be one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphpipe.cli.main import VERBS

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if BLOCK.search(page.read_text()))
NOT_RUN = {"needs two hosts", "needs SLURM"}


def run(command: list[str], folder: Path) -> None:
    graphpipe = folder / "bin" / "graphpipe"
    graphpipe.parent.mkdir(exist_ok=True)
    graphpipe.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m graphpipe "$@"\n')
    graphpipe.chmod(0o755)
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{folder}",
        "PATH": f"{graphpipe.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(400)  # a page runs several commands, each a process of its own
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for language, options, body in BLOCK.findall(page.read_text()):
        if reason := re.search(r'not-run="([^"]*)"', options):
            assert reason[1] in NOT_RUN
            if "-m graphpipe" in body:
                assert shlex.split(body.split("-m graphpipe")[1])[0] in VERBS
        elif title := re.search(r'title="([^"]*)"', options):
            (tmp_path / title[1]).write_text(body)
        elif language == "bash":
            run(["bash", "-euc", body], tmp_path)
        else:
            assert language == "python", f"{page}: a block of {language} is neither run nor written to a file"
            run([sys.executable, "-c", body], tmp_path)


def test_the_slurm_script_is_bash_and_starts_training() -> None:
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert shlex.split(script.read_text().split("-m graphpipe")[1])[0] == "train"
