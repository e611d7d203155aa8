"""Programs whose processes are forks of a server that has imported torch already (see fork_server.py)."""

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
_SERVER, _CLIENT = (Path(__file__).parent / name for name in ("fork_server.py", "fork_client.py"))
_SECONDS = 120.0
_GPUS = ("/dev/nvidiactl", "/dev/kfd")
FORKS = Path("/proc/self/ns").exists() and not any(Path(gpu).exists() for gpu in _GPUS)
"""Whether programs can be forks of the server: on Linux without GPUs, because CUDA cannot be used in a fork."""


@cache
def server() -> Path:
    """Return the socket of this test run's server. The first worker to call this starts the server."""
    owner = psutil.Process(int(os.environ.setdefault("GRAPHPIPE_TESTS_PROCESS", str(os.getpid()))))
    folder = Path(tempfile.gettempdir()) / f"graphpipe-fork-server-{owner.pid}-{owner.create_time():.2f}"
    path = folder / "socket"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        subprocess.run(
            [sys.executable, _SERVER, path, str(owner.pid)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    end = time.monotonic() + _SECONDS
    while not _listens(path):
        assert time.monotonic() < end, "the fork server did not start"
        time.sleep(0.1)
    return path


@cache
def forked_programs() -> Path:
    """Return a folder with `graphpipe`, `python`, `worker` and `torchrun`. They run in forks of the server.

    Elsewhere they are plain programs, which start more slowly.
    """
    if not FORKS:
        return _plain_programs()
    folder = Path(tempfile.mkdtemp(dir=server().parent))
    for name in ("graphpipe", "python", "worker"):
        _program(folder / name, sys.executable, "-S", "-E", str(_CLIENT), str(server()), name)
    _program(folder / "torchrun", sys.executable, "-m", "torch.distributed.run")
    os.environ["FORKED_PYTHON"] = str(folder / "python")  # `sys.executable` of the forks
    os.environ["SHARED_CAPTURES"] = str(server().parent / "captures")
    return folder


def _plain_programs() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="graphpipe-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("python", "worker"):
        _program(folder / name, sys.executable)
    _program(folder / "graphpipe", sys.executable, "-m", "graphpipe")
    _program(folder / "torchrun", sys.executable, "-m", "torch.distributed.run")
    return folder


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return not probe.connect_ex(str(path))


def _program(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
