"""Run torchrun with the same arguments on every host of `namespaces.py`, as the documentation describes."""

import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.record import ROOT
from bench.running.hosts.namespaces import Host
from graphpipe.plans import Plan
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.train_rank import train_from_folder

DIGITS = ROOT / "examples" / "digits.toml"
TRAIN = ("graphpipe", "train", DIGITS, "plan.costs=estimate")
"""The digits example; the costs are not measured if the plan is given."""
TRAIN_EACH = ("graphpipe.launch.rank_main", "bench.running.hosts.host_runs:train_each")
_PORT = 29_500
"""Rendezvous port of the agents; every network has all its ports free."""


@contextmanager
def torchrun(
    on: Sequence[Host], folder: Path, *words: str | Path, ranks: int = 1, options: Sequence[str] = ()
) -> Generator[list[subprocess.Popen[bytes]]]:
    """Start a Python module on the hosts; processes that still run after the block are killed.

    Args:
        on: the hosts; the first is where all meet.
        folder: what each host says comes into a file of the host's name.
        words: the module and its arguments.
        ranks: on each host.
        options: further ones of torchrun; they count more than these here.
    """
    where = ["--nnodes", str(len(on)), "--nproc-per-node", str(ranks)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{on[0].address}:{_PORT}"]
    command = [sys.executable, "-m", "torch.distributed.run", *where, *meeting, *options, "-m", *words]
    agents = [host.start(command, folder / f"{host.name}.txt") for host in on]
    try:
        yield agents
    finally:
        for agent in agents:  # Their child processes end with the host.
            agent.kill()
            agent.wait()


def wait(agents: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Wait until all have ended, and return their exit codes.

    Raises:
        TimeoutExpired: one has not.
    """
    end = time.monotonic() + seconds
    return [agent.wait(max(0.0, end - time.monotonic())) for agent in agents]


def run_of(plan: Plan, path: Path, *overrides: str) -> RunFolder:
    """Create and return the folder of a run of the digits example."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    read_config(DIGITS, overrides).save(folder.config)
    plan.save(folder.plan)
    return folder


def train_each(*folders: str) -> None:
    """Do one run after the other on every rank, with one start of the processes."""
    for folder in folders:
        train_from_folder(folder)
