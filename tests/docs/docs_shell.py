"""Where the commands of the documentation run: an empty folder with the examples, and `graphpipe` on the path."""

import os
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def prepare(folder: Path) -> dict[str, str]:
    """Put the examples and the command into a folder, and return the environment to run in there."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    graphpipe = folder / "bin" / "graphpipe"
    graphpipe.parent.mkdir()
    graphpipe.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m graphpipe "$@"\n')
    graphpipe.chmod(0o755)
    return os.environ | {
        "PYTHONPATH": f"{ROOT}:{folder}",
        "PATH": f"{graphpipe.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
