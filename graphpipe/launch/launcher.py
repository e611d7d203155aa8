"""Starting ranks on this machine, and saying once what went wrong first."""

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.launch.first_failure import first_cause
from graphpipe.launch.kill_hung_ranks import Reaper
from graphpipe.launch.local_rendezvous import BACKEND
from graphpipe.launch.parent_watch import lifeline
from graphpipe.run.comm.rendezvous_store import LOOPBACK, loopback_interface
from graphpipe.run.faults.rank_status import WATCH

SHUTDOWN_SECONDS = 2
"""How long a rank that is told to stop may take: none of them has anything left to do."""
_AGENT = "torch.distributed.elastic"
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


def launch(
    entry: Sequence[str] | str,
    nproc: int,
    *,
    arguments: Sequence[str] = (),
    port: int = 0,
    environment: Mapping[str, str] = _NOTHING_MORE,
) -> None:
    """Run `nproc` ranks of a command on this machine, as torchrun would, and wait for them.

    They end with this process, however it ends.

    Args:
        entry: the command, or `package.module:function`, which is called with the arguments as strings. The command
            should run its work in `graphpipe.launch.rank_main.as_rank`, so that it ends with this process, and its
            errors come with their text.
        nproc: number of ranks.
        arguments: appended to the command, or given to the function.
        port: where the ranks meet; 0 is any free one, on the loopback interface only.
        environment: variables that the ranks get besides those of this process.

    Raises:
        InvalidInput: the port is in use.
        RankFailed: a rank failed; names the first and its error. The other ranks have been stopped.
        GraphPipeError: this process was told to stop.
    """
    command = [sys.executable, "-m", "graphpipe.launch.rank_main", entry] if isinstance(entry, str) else list(entry)
    check_port(port)
    with (
        tempfile.TemporaryDirectory(prefix="graphpipe") as logs,
        lifeline(Path(logs)),
        _environment(nproc, {WATCH: logs, **environment}),
        Reaper(Path(logs)),
        _quiet(),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            run_id="graphpipe",
            rdzv_backend=BACKEND,
            rdzv_endpoint=f"{LOOPBACK}:{port}",
            local_addr=LOOPBACK,
            max_restarts=0,
            shutdown_timeout=SHUTDOWN_SECONDS,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, command[0])(*command[1:], *arguments)
        except ChildFailedError as error:
            raise first_cause(error.failures, logs) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise GraphPipeError(f"stopped by {error.sigval.name}") from None


def check_port(port: int) -> None:
    """Check that the ranks can meet at this port; 0 is any free one.

    Raises:
        InvalidInput: it is taken, or not a port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OverflowError:
            raise InvalidInput(f"{port} is no port", remedy="Ports are 0 (any free one) to 65535.") from None
        except OSError as error:
            raise InvalidInput(
                f"port {port} cannot be used: {error.strerror}",
                remedy="Choose another, or 0 for any free one.",
            ) from None


@contextmanager
def _environment(nproc: int, more: Mapping[str, str]) -> Generator[None]:
    # What the ranks inherit. Without a thread limit every rank would use all cores; gloo looks up the host's name
    # and listens on its address unless it is given an interface.
    wanted = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // nproc)),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
    }
    before = {name: os.environ.get(name) for name in (*wanted, *more)}
    os.environ.update({name: value for name, value in wanted.items() if name not in os.environ} | dict(more))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Generator[None]:
    # The agent logs every failure of every rank, and signals; `first_cause` says it once. Some of its loggers have
    # levels of their own.
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
