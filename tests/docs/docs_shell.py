"""Where the commands of the documentation run: an empty folder with the examples, and `graphpipe` on the path."""

import os
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WARM = Path(__file__).parent / "warm.py"


def prepare(folder: Path, server: str) -> dict[str, str]:
    """Put the examples and the commands into a folder, and return the environment to run in there.

    Args:
        folder: empty.
        server: where `warm.py` listens, which runs `graphpipe`, and `python` with the ranks that `graphpipe` starts.
    """
    shutil.copytree(ROOT / "examples", folder / "examples")
    programs = folder / "bin"
    programs.mkdir()
    _program(programs / "graphpipe", *warm(server, "graphpipe"))
    _program(programs / "python", *warm(server, "python"))
    _program(programs / "torchrun", sys.executable, "-m", "torch.distributed.run")
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "WARM_PYTHON": str(programs / "python"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def warm(server: str, *command: str) -> list[str]:
    """Return what runs a command in a fork of the server."""
    return [sys.executable, "-S", str(WARM), "run", server, *command]


def _program(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
