"""Runs pytest in a fork of a process that has imported torch and the other large packages, but nothing of graphpipe.

    python warm_pytest.py serve SOCKET              imports them, and then forks for each command
    python warm_pytest.py run SOCKET ARGUMENT...    pytest in this folder; ends with its exit code

`make mutate` runs some thousand short test runs, whose imports would take several seconds each.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

STARTED = time.time()
POLL_SECONDS = 0.02
LARGE = (
    "hypothesis",
    "numpy",
    "psutil",
    "pydantic",
    "pytest",
    "_hypothesis_pytestplugin",
    "scipy.optimize",
    "torch",
    "torch.distributed",
)
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "-p", "no:unraisableexception")
"""The plugins that the tests need. To load all that are installed would take half of the time."""


def run(path: str, arguments: list[str]) -> int:
    """Let the server run pytest in this folder, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps({"folder": os.getcwd(), "arguments": arguments}).encode() + b"\n")
        answer = connection.makefile("r").readline()
    return int(answer or 1)


def serve(path: str) -> None:
    """Fork for every command, until this process is stopped."""
    from importlib import import_module

    for name in LARGE:
        import_module(name)
    import gc

    gc.freeze()
    assert "graphpipe" not in sys.modules, "every run must import its own copy"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _attend(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _attend(connection: socket.socket) -> None:
    """Run the command in a child, and kill it if the client has ended before."""
    request = json.loads(connection.makefile("r").readline() or "null")
    if request is None:
        os._exit(0)
    if (child := os.fork()) == 0:
        os.setsid()
        connection.close()
        _test(**request)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        if select.select([connection], [], [], POLL_SECONDS)[0]:
            os.killpg(child, signal.SIGKILL)
            os._exit(0)


def _test(folder: str, arguments: list[str]) -> None:
    import pytest

    _forget_bytecode(Path(folder, "graphpipe"))
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    silent = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(silent, number)
    code = 1
    try:
        code = int(pytest.main([*PLUGINS, *arguments]))
    finally:
        os._exit(code)


def _forget_bytecode(package: Path) -> None:
    # Two mutants of a line may have the same size, and be made in the same second: Python would take the one before.
    for module in package.rglob("*.py"):
        if module.stat().st_mtime > STARTED:
            Path(cache_from_source(str(module))).unlink(missing_ok=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
