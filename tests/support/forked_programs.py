"""Programs whose processes are forks of a server that has imported torch and more (see fork_server.py)."""

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
_WARM = Path(__file__).parent / "fork_server.py"
_SECONDS = 120.0


@cache
def server() -> Path:
    """Return the socket of the server of this run of the tests: who asks first starts it, for all workers."""
    owner = psutil.Process(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    folder = Path(tempfile.gettempdir()) / f"graphpipe-warm-{owner.pid}-{owner.create_time():.2f}"
    path = folder / "socket"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        subprocess.run(
            [sys.executable, _WARM, "serve", path, str(owner.pid)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    end = time.monotonic() + _SECONDS
    while not _listens(path):
        assert time.monotonic() < end, "the server of warm processes did not start"
        time.sleep(0.1)
    return path


@cache
def programs() -> Path:
    """Return a folder with `graphpipe`, `python` and `torchrun` that run in forks of the server, as their ranks do."""
    folder = Path(tempfile.mkdtemp(dir=server().parent))
    for name in ("graphpipe", "python"):
        _program(folder / name, sys.executable, "-S", str(_WARM), "run", str(server()), name)
    _program(folder / "torchrun", sys.executable, "-m", "torch.distributed.run")
    os.environ["WARM_PYTHON"] = str(folder / "python")  # what such a process starts others with
    return folder


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return not probe.connect_ex(str(path))


def _program(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
