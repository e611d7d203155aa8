"""`launch`: starts ranks on this machine, waits for them, and reports the first failure once."""

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import MappingProxyType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.launch.exit_order import recording_exits
from graphpipe.launch.first_failure import RankFailed, first_failure, left_early
from graphpipe.launch.hung_ranks import MARGIN_SECONDS, HungRanks
from graphpipe.launch.kill_hung_ranks import kill_hung_ranks
from graphpipe.launch.local_rendezvous import BACKEND
from graphpipe.launch.parent_watch import hold_launcher_lock
from graphpipe.launch.rank_processes import SHUTDOWN_SECONDS
from graphpipe.launch.run_regrouping import Regroup, run_regrouping
from graphpipe.model.torch_private import shut_down_within
from graphpipe.run.faults.rank_status import STATUS_FOLDER, read_statuses
from graphpipe.run.meeting.rendezvous_store import LOOPBACK, loopback_interface
from graphpipe.user_frames import warn_user
from graphpipe.waiting import waiting

_AGENT = "torch.distributed.elastic"
_AGENT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def launch(
    entry: Sequence[str] | str,
    nproc: int,
    *,
    arguments: Sequence[str] = (),
    port: int = 0,
    environment: Mapping[str, str] = _NO_VARIABLES,
    regroup: Regroup | None = None,
    timeout_seconds: float = 300.0,
) -> None:
    """Run `nproc` ranks of a command on this machine, as torchrun would, and wait for them.

    The ranks end when this process does, however it ends. A rank that hangs is killed (see `hung_ranks`). If all ranks
    have done their work by then, this is a warning, not an error.

    Args:
        entry: a command, or `package.module:function`, which is called with the arguments as strings. A command should
            do its work in `graphpipe.launch.rank_main.run_as_rank`, so that it ends when this process does and its
            errors are reported with their text.
        nproc: number of ranks.
        arguments: appended to the command, or passed to the function.
        port: where the ranks meet, on the loopback interface only; 0 is any free port.
        environment: variables that the ranks get in addition to those of this process.
        regroup: decides whether the other ranks go on without a rank that is lost (see `run_regrouping`). None: they
            are stopped.
        timeout_seconds: how long a rank may show no sign of life, and how long its process may take to end.

    Raises:
        InvalidInput: the port is in use.
        RankFailed: a rank failed; names the first and its error. The other ranks have been stopped.
        GraphPipeError: this process received a signal to stop.
    """
    command = [sys.executable, "-m", "graphpipe.launch.rank_main", entry] if isinstance(entry, str) else list(entry)
    check_port(port)
    with (
        tempfile.TemporaryDirectory(prefix="graphpipe") as logs,
        hold_launcher_lock(Path(logs)),
        _environment(nproc, {STATUS_FOLDER: logs, **environment}),
        waiting_for_ranks(Path(logs), nproc),
        recording_exits(nproc) as exits,
        _restored_signal_handlers(),
    ):
        ranks = HungRanks(folder=Path(logs), count=nproc, limit_seconds=timeout_seconds + MARGIN_SECONDS)
        try:
            if regroup is None:
                _run_agent([*command, *arguments], nproc, port, logs, exits, ranks)
            else:
                run_regrouping([*command, *arguments], ranks, port=port, exits=exits, regroup=regroup)
        except RankFailed as failure:
            if not failure.after_work:
                raise
            warn_user(f"{failure.where}: {failure.what}. All ranks had done their work before.")
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise GraphPipeError(f"stopped by {error.sigval.name}") from None


def _run_agent(
    command: Sequence[str], nproc: int, port: int, logs: str, exits: Sequence[int], ranks: HungRanks
) -> None:
    # Torch's agent stops all ranks as soon as one has failed.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id="graphpipe",
        rdzv_backend=BACKEND,
        rdzv_endpoint=f"{LOOPBACK}:{port}",
        local_addr=LOOPBACK,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
        signals_to_handle=",".join(_handled_signals()),
    )
    shut_down_within(config, SHUTDOWN_SECONDS)
    with kill_hung_ranks(Path(logs), ranks), _silenced_agent():
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            failures = left_early(ranks, error.failures) | error.failures
            done = ranks.all_done(range(nproc))
            raise first_failure(failures, logs, exits, hung=ranks.killed, swept=ranks.swept, after_work=done) from None
    if early := left_early(ranks):
        raise first_failure(early, logs, exits)


def _handled_signals() -> list[str]:
    # What was ignored stays ignored, such as SIGHUP under nohup. Torch's agent would stop the ranks.
    return [number.name for number in _AGENT_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def check_port(port: int) -> None:
    """Check that the ranks can meet at this port; 0 is any free port.

    Raises:
        InvalidInput: the port is in use, or is not a port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OverflowError:
            raise InvalidInput(f"{port} is not a port", remedy="Ports are 0 (any free one) to 65535.") from None
        except OSError as error:
            raise InvalidInput(
                f"port {port} cannot be used: {error.strerror}",
                remedy="Choose another, or 0 for any free one.",
            ) from None


@contextmanager
def _environment(nproc: int, more: Mapping[str, str]) -> Generator[None]:
    # The variables that the ranks inherit. Without a thread limit every rank would use all cores. Without an interface,
    # gloo looks up the host name and listens on its address.
    defaults = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // nproc)),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
    }
    before = {name: os.environ.get(name) for name in (*defaults, *more)}
    os.environ.update({name: value for name, value in defaults.items() if name not in os.environ} | dict(more))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _restored_signal_handlers() -> Generator[None]:
    # The agent replaces the handlers and leaves its own behind. Ctrl-C must work in a notebook afterwards.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _AGENT_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python.
                signal.signal(number, handler)


@contextmanager
def _silenced_agent() -> Generator[None]:
    # The agent logs signals and every failure of every rank, but `first_failure` reports the cause once. Some of the
    # agent's loggers have their own levels.
    loggers = [
        logging.getLogger(_AGENT + part) for part in ("", ".agent.server.api", ".agent.server.local_elastic_agent")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


LOOK_SECONDS = 0.05


@contextmanager
def waiting_for_ranks(folder: Path, count: int) -> Generator[None]:
    """Show what happens until a rank has written its first status, or the block ends.

    Args:
        folder: where the ranks write their statuses.
        count: number of ranks.
    """
    ended = threading.Event()

    def show() -> None:
        with waiting(f"starting {count} processes"):
            while not read_statuses(folder) and not ended.wait(LOOK_SECONDS):
                pass

    # A new thread begins with an empty context, which does not have the display.
    thread = threading.Thread(target=copy_context().run, args=(show,), daemon=True, name="graphpipe-await-ranks")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
