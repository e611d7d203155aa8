"""A server that forks a process for each command. It has imported torch already, which saves up to eight seconds.

    python fork_server.py serve SOCKET OWNER                  waits for commands until the process OWNER ends
    python fork_server.py run SOCKET graphpipe ARGUMENT...    the command line, as the installed script would run it
    python fork_server.py run SOCKET python -c CODE ...       a program
    python fork_server.py run SOCKET python FILE ...          a program in a file
    python fork_server.py run SOCKET python -m MODULE ...     a module, such as a rank of `graphpipe train`
    python fork_server.py run SOCKET worker -u -c CODE        a worker of pytest-xdist, with the real `sys.executable`

Each command runs in its own fork, with the environment, working directory and open files of the client. The fork
shares nothing but imports with the server. The client exits with the command's exit code, or by the signal that ended
the command. If the client is killed, the command receives SIGTERM, and SIGKILL after `GRACE_SECONDS`.
"""

import gc
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from importlib import import_module
from runpy import run_module, run_path

GRACE_SECONDS = 5.0
_NO_CLIENT = -1
_TRANSFORMERS = ("bart", "clip", "flava", "gpt2", "llava", "mixtral", "t5", "vilt", "vit")
SHARED = (
    *("graphpipe.training.train", "graphpipe.model.zoo"),
    *(
        "graphpipe.report.figures.static_figures",
        "graphpipe.report.page.report_page",
        "matplotlib.backends.backend_svg",
    ),
    *("torch.export._trace", "torch._dynamo.exc", "torch.fx.experimental.validator"),
    *("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining"),
    *("scipy.optimize", "transformers.modeling_utils"),
    *(f"transformers.models.{name}.modeling_{name}" for name in _TRANSFORMERS),
)
"""Modules that take long to import."""


def serve(path: str, owner: int) -> None:
    """Fork a process for every command."""
    if os.fork():  # Detach: the tests search their children for processes that were left running.
        os._exit(0)
    _warm_up()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    assert threading.active_count() == 1, "a fork would lose the server's other threads"
    listener.settimeout(1.0)
    with suppress(ProcessLookupError):
        while True:
            os.kill(owner, 0)
            _reap()
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listener.close()
                return _attend(connection)
            connection.close()
    shutil.rmtree(os.path.dirname(path))


def _warm_up() -> None:
    gc.disable()
    for name in SHARED:
        with suppress(ImportError):  # of an optional extra
            import_module(name)
    import graphpipe as gp
    from graphpipe.model.zoo import zoo

    gp.capture(*zoo("two-tower-small", device="meta"))  # torch.export imports more when it is first used.
    gc.collect()
    gc.freeze()  # Collections in the forks then do not write to these pages, so they are never copied.
    gc.enable()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(connection: socket.socket) -> None:
    """Run the command in a child, and send its exit code to the client."""
    connection.setblocking(True)
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    if not head:  # The client only tested whether the server listens.
        os._exit(0)
    (length,) = struct.unpack("!Q", head)
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    if (child := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, ended, wake):
            each.close()
        return _become(files, **json.loads(text))
    for file in files:
        os.close(file)  # A reader of the command's output sees its end only after every copy is closed.
    while (status := _status(child, ended, connection, None)) is None:
        pass
    if status == _NO_CLIENT:
        os.kill(child, signal.SIGTERM)
        if _status(child, ended, None, GRACE_SECONDS) is None:
            os.kill(child, signal.SIGKILL)
        os._exit(0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError):  # The client has ended in the meantime.
        connection.sendall(struct.pack("!i", code))
    os._exit(0)


def _status(child: int, woken: socket.socket, client: socket.socket | None, seconds: float | None) -> int | None:
    """Wait, and return the status of a child that has ended, or `_NO_CLIENT`. None: it was only stopped, or is late."""
    found = select.select([each for each in (woken, client) if each], [], [], seconds)[0]
    if client in found:
        return _NO_CLIENT
    if woken in found:
        woken.recv(1 << 10)
    pid, status = os.waitpid(child, os.WNOHANG)  # SIGCHLD also comes when a child is stopped.
    return status if pid else None


def _become(files: list[int], environment: dict[str, str], folder: str, command: list[str]) -> None:
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.pop(0)  # this file's folder
    sys.path[:0] = [
        each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path
    ]
    if command[0] != "worker":
        # Processes that the command starts with its own Python, such as ranks, are forked too: see forked_programs.py.
        sys.executable = environment["FORKED_PYTHON"]
    match command:
        case ["graphpipe", *_]:
            from graphpipe.cli.main import main

            sys.argv = command
            sys.exit(main())
        case ["python", "-c", code, *arguments] | ["worker", "-u", "-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            exec(compile(code, "<snippet>", "exec"), {"__name__": "__main__"})
        case ["python", "-u", "-m", module, *_] | ["python", "-m", module, *_]:
            sys.argv = command[command.index(module) :]
            sys.path.insert(0, folder)
            run_module(module, run_name="__main__", alter_sys=True)
        case ["python", script, *_]:
            sys.argv = command[1:]
            sys.path.insert(0, os.path.dirname(script))
            run_path(script, run_name="__main__")
        case _:
            raise AssertionError(command)


def run(path: str, command: list[str]) -> int:
    """Let the server run a command, and return its exit code."""
    text = json.dumps({"environment": dict(os.environ), "folder": os.getcwd(), "command": command}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [struct.pack("!Q", len(text))], [0, 1, 2])
        connection.sendall(text)
        answer = connection.recv(4, socket.MSG_WAITALL)
    code = struct.unpack("!i", answer)[0] if len(answer) == 4 else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(run(sys.argv[2], sys.argv[3:]))
