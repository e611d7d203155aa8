"""A server that forks a process for each command. It has imported torch already, which saves up to eight seconds.

    python fork_server.py SOCKET OWNER                    waits for commands until the process OWNER ends
    python fork_client.py SOCKET graphpipe ARGUMENT...    the command line, as the installed script would run it
    python fork_client.py SOCKET python -c CODE ...       a program
    python fork_client.py SOCKET python FILE ...          a program in a file
    python fork_client.py SOCKET python -m MODULE ...     a module, such as a rank of `graphpipe train`
    python fork_client.py SOCKET worker -u -c CODE        a worker of pytest-xdist, with the real `sys.executable`

Each command runs in its own fork, with the environment, working directory, open files and Linux namespaces of the
client. The fork shares nothing but imports with the server. The client exits with the command's exit code, or by the
signal that ended the command. If the client receives SIGINT, the command receives it. If the client receives SIGTERM or
is killed, the command receives SIGTERM, and SIGKILL after `GRACE_SECONDS`.
"""

import atexit
import ctypes
import fcntl
import gc
import marshal
import multiprocessing
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from runpy import run_module, run_path
from typing import NoReturn

GRACE_SECONDS = 5.0
_NO_CLIENT = -1
_FILES = 250
"""How many files a message can carry. Numbers above it are free for a while in a new process."""
_NAMESPACES = ("user", "net", "uts", "mnt", "pid")
"""Of a host that `namespaces.py` of `bench` makes. The first is entered first: it gives the right to enter others."""
_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_TRANSFORMERS = ("bart", "clip", "flava", "gpt2", "llava", "mixtral", "t5", "vilt", "vit")
_GRAPHPIPE = (
    *("cli.main", "training.prepare", "training.train", "training.train_locally", "training.train_rank"),
    *("inference.answer_rank", "launch.launcher", "launch.rank_main", "profiler.profile"),
    *("model.capture_cache.capture_cache", "model.zoo", "report.figures.static_figures", "report.page.report_page"),
)
SHARED = (
    *(f"graphpipe.{name}" for name in _GRAPHPIPE),
    *("matplotlib.backends.backend_svg", "pydantic.dataclasses", "rich._emoji_codes", "peft"),
    *("torch.export._trace", "torch._dynamo.exc", "torch.fx.experimental.validator", "torch.profiler"),
    *("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining"),
    *("scipy.optimize", "transformers.modeling_utils"),
    *(f"transformers.models.{name}.modeling_{name}" for name in _TRANSFORMERS),
)
"""Modules that take long to import."""
DOCUMENTS = (
    *("cluster.cluster.Cluster", "costs.cost_table.CostTable", "graph.operator.Input", "graph.operator.Origin"),
    *("graph.operator_graph.Graph", "model.capture_file.capture_file._CaptureRecord", "plans.plan.Plan"),
    *("plans.plan.PlanFile", "run.checkpoint.manifest.Manifest", "run.checkpoint.manifest._HashedManifest"),
    *("run.checkpoint.optimizer_state.OptimizerState", "run.checkpoint.training_state.TrainingState"),
    *("run.comm.rank_placement.RankLayout", "trace.trace.Trace", "training.config.settings.TrainConfig"),
    *("training.run_folder.train_result.TrainResult", "training.telemetry.banner.Readiness"),
    *(f"training.telemetry.event.{name}Event" for name in ("Checkpoint", "End", "Memory", "Start", "Step")),
)
"""Types that a rank reads or writes. It would spend half of its time on making pydantic's adapters for them."""


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
    from graphpipe.files.json_body import _adapter
    from graphpipe.model.zoo import zoo

    for document in DOCUMENTS:
        module, _, name = document.rpartition(".")
        _adapter(getattr(import_module(f"graphpipe.{module}"), name))

    gp.capture(*zoo("two-tower-small", device="meta"))  # torch.export imports more when it is first used.
    for each in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
        each.atexit = False  # Each fork would delete torch's libraries of operators, and so copy 40 MB.
    gc.collect()
    gc.freeze()  # Collections in the forks then do not write to these pages, so they are never copied.
    gc.enable()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Move this process's memory to pages of 2 MB, where Linux can (since 6.1). Two forks then take 15 ms, not 60."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as areas:
        for area, rights, _, _, _, *name in map(str.split, areas.readlines()):
            if rights == "rw-p" and name in ([], ["[heap]"]):
                start, end = (int(each, 16) for each in area.split("-"))
                for page in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                    advise(page, _HUGE, _MADV_COLLAPSE)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(connection: socket.socket) -> None:
    """Run the command in a child, and send its exit code to the client."""
    connection.setblocking(True)
    head, files, _, _ = socket.recv_fds(connection, 8, _FILES)
    if not head:  # The client only tested whether the server listens.
        os._exit(0)
    (length,) = struct.unpack("!Q", head)
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    _enter_namespaces(connection)
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    if (child := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, ended, wake):
            each.close()
        _end(partial(_become, files, **marshal.loads(text)))
    for file in files:
        os.close(file)  # A reader of the command's output sees its end only after every copy is closed.
    status: int | None = None
    while status is None:
        status = _status(child, ended, connection, None)
    if status == _NO_CLIENT:
        os.kill(child, signal.SIGTERM)
        status = _status(child, ended, None, GRACE_SECONDS)
    if status is None:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError):  # The client has ended in the meantime.
        connection.sendall(struct.pack("!i", code))
    os._exit(0)


def _enter_namespaces(connection: socket.socket) -> None:
    """Move this process to the client's namespaces. Only its children enter the namespace of processes."""
    client, _, _ = struct.unpack("iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    others = [
        os.open(f"/proc/{client}/ns/{name}", os.O_RDONLY)
        for name in _NAMESPACES
        if os.readlink(f"/proc/{client}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    for file in others:
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(file)


def _status(child: int, woken: socket.socket, client: socket.socket | None, seconds: float | None) -> int | None:
    """Wait, and return the status of a child that has ended, or `_NO_CLIENT`. None: it was only stopped, or is late."""
    found = select.select([each for each in (woken, client) if each], [], [], seconds)[0]
    if client and client in found:
        if not client.recv(1):
            return _NO_CLIENT
        os.kill(child, signal.SIGINT)
    if woken in found:
        woken.recv(1 << 10)
    pid, status = os.waitpid(child, os.WNOHANG)  # SIGCHLD also comes when a child is stopped.
    return status if pid else None


def _end(command: Callable[[], None]) -> NoReturn:
    """Run the command and exit as Python does, but keep the modules: a fork that frees them copies all their pages."""
    code: object = 0
    try:
        command()
    except SystemExit as exit:
        code = exit.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] # as Python calls it
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _become(files: list[int], numbers: list[int], environment: dict[str, str], folder: str, command: list[str]) -> None:
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, _FILES) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, above, strict=True):
        os.dup2(file, number)
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
        multiprocessing.set_executable(sys.executable)
    program, *options = command
    while options and options[0] in {
        "-u",
        "-B",
        "-E",
        "-s",
    }:  # of the server, or without effect
        options.pop(0)
    match program, options:
        case "graphpipe", _:
            from graphpipe.cli.main import main

            sys.argv = command
            sys.exit(main())
        case _, ["-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            exec(compile(code, "<snippet>", "exec"), {"__name__": "__main__"})
        case "python", ["-m", module, *_]:
            sys.argv = options[1:]
            sys.path.insert(0, folder)
            run_module(module, run_name="__main__", alter_sys=True)
        case "python", [script, *_]:
            sys.argv = options
            sys.path.insert(0, os.path.dirname(script))
            run_path(script, run_name="__main__")
        case _:
            raise AssertionError(command)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
