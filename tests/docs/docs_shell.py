"""Where the commands of the documentation run: an empty folder with the examples, and `graphpipe` on the path."""

import os
import shutil
from pathlib import Path

from forked_programs import ROOT, programs


def prepare(folder: Path) -> dict[str, str]:
    """Put the examples into an empty folder, and return the environment to run commands in there."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{programs()}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
