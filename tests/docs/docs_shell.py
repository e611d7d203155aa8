"""Prepares a folder in which the commands of the documentation run, with the examples and `graphpipe` on the path."""

import os
import shutil
from pathlib import Path

from forked_programs import ROOT, forked_programs


def prepare(folder: Path) -> dict[str, str]:
    """Copy the examples into an empty folder, and return the environment for commands that run there."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{forked_programs()}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
