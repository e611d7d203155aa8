"""The processes of the ranks of one machine. Torch's agent, which would stop all of them at once, is not used."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe.run.meeting.rendezvous_store import LOOPBACK

SHUTDOWN_SECONDS = 2
"""How long a rank may take to end after SIGTERM. It has nothing left to do then."""
_POLL_SECONDS = 0.02


@dataclass(slots=True)
class RankProcesses:
    """The processes that were started, by their number, and the rank that each has now."""

    folder: Path
    """The folder where the processes record their errors."""
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])
    ranks: dict[int, int] = field(default_factory=dict[int, int])
    """The rank of each process. A process that was lost does not have one."""

    def start(self, command: Sequence[str], count: int, port: int, environment: Mapping[str, str]) -> None:
        """Start the processes of `count` ranks, with the variables that torchrun would give them.

        Args:
            command: that every process runs.
            count: number of ranks.
            port: where they meet.
            environment: further variables.
        """
        for number in range(count):
            own = {
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "GROUP_RANK": "0",
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "TORCHELASTIC_ERROR_FILE": str(self._error_file(number)),
            }
            # A session of its own: the launcher decides what Ctrl-C means for its ranks.
            self.started[number] = subprocess.Popen(
                command, env=os.environ | dict(environment) | own, start_new_session=True
            )
            self.ranks[number] = number

    def pids(self) -> dict[int, int]:
        """Return the process ids of the processes with a rank."""
        return {number: self.started[number].pid for number in self.ranks}

    def ended(self) -> dict[int, int]:
        """Return the exit codes of the processes with a rank that have ended."""
        codes = {number: self.started[number].poll() for number in self.ranks}
        return {number: code for number, code in codes.items() if code is not None}

    def failures(self, numbers: Sequence[int]) -> dict[int, ProcessFailure]:
        """Return how processes have failed, by rank."""
        return {
            self.ranks[number]: ProcessFailure(
                local_rank=self.ranks[number],
                pid=self.started[number].pid,
                exitcode=self.started[number].returncode,
                error_file=str(self._error_file(number)),
            )
            for number in numbers
        }

    def renumber(self, ranks: Mapping[int, int]) -> None:
        """Give processes their next ranks. The others have none."""
        self.ranks = dict(ranks)

    def wait(self, seconds: float, numbers: Sequence[int]) -> None:
        """Wait until these processes have ended, or for some seconds."""
        end = time.monotonic() + seconds
        while any(self.started[number].poll() is None for number in numbers) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop all processes that still run."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [pid for pid, process in self.started.items() if process.poll() is None]
            for pid in running:
                with suppress(ProcessLookupError):
                    os.killpg(self.started[pid].pid, number)
            self.wait(SHUTDOWN_SECONDS, running)
        for process in self.started.values():
            process.wait()

    def _error_file(self, number: int) -> Path:
        return self.folder / f"error-{number}.json"
