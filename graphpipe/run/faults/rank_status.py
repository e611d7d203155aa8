"""What a rank is doing, written to a file that its launcher can still read after the rank has died.

A rank that is killed or stopped cannot report anything, and its peers know only which rank they waited for. Therefore
every rank writes what it does next to a small memory-mapped file, which outlives the process. A write takes half a
microsecond.
"""

import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STATUS_FOLDER = "GRAPHPIPE_STATUS_FOLDER"
"""The environment variable that names the folder of the status files. Unset: a rank keeps its status in memory."""

NO_PEER, ALL_PEERS = -1, -2
"""Values of `RankStatus.peer` for a rank that waits for no single peer."""

# The record: seconds of `time.monotonic`, process, step, phase, stage, micro-batch, peer.
# After the record: the error that ended the rank, zeros, the host and the names of the stages, one per line.
_RECORD = struct.Struct("<d6i")
_ERROR_BYTES = 512
_NAMES = _RECORD.size + _ERROR_BYTES
_PHASES = (
    "start",
    "data",
    "agree",
    "forward",
    "backward",
    "send",
    "receive",
    "reduce",
    "summary",
    "optimizer",
    "buffers",
    "checkpoint",
    "resume",
)
_PHASE_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}
_COMPUTING = ("forward", "backward")
_DESCRIPTIONS = {
    "start": "starting",
    "data": "between two steps",
    "agree": "comparing its mini-batch with the other ranks'",
    "resume": "reading its checkpoint",
    "summary": "waiting for all ranks to end the step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """What a rank was about to do when it last wrote its status."""

    host: str
    pid: int
    seconds: float
    """The time of `time.monotonic`, which the processes of a machine share, and which nobody sets back."""
    step: int
    """Number of the step, from 1."""
    phase: str
    stage: str
    """Name of the stage; empty if the phase does not belong to one."""
    micro_batch: int
    """Number of the micro-batch; -1 if the phase does not belong to one."""
    peer: int
    """The rank it waited for, or `NO_PEER` or `ALL_PEERS`."""
    error: str = ""
    """The beginning of the error that ended it, as in `KeyError: 'x'`. Empty if it has raised none."""

    def __str__(self) -> str:
        """Return host, stage, step and task, to end a sentence."""
        micro_batch = f" of micro-batch {self.micro_batch}" if self.micro_batch >= 0 else ""
        stage = f"stage '{self.stage}', " if self.stage else ""
        return f"host {self.host}, {stage}step {self.step}, {_DESCRIPTIONS.get(self.phase, self.phase)}{micro_batch}"


class StatusWriter:
    """Writes the status of this rank. Each status replaces the one before.

    Args:
        rank: this rank.
        stages: names of all stages, by number.
    """

    def __init__(self, rank: int, stages: Sequence[str]) -> None:
        self.step = 1
        self.computing_seconds = 0.0
        """Between statuses of a forward or backward and the next ones, so far. On a GPU they only start kernels."""
        self._computing, self._since = False, 0.0
        self.host = socket.gethostname()
        names = "\n".join([self.host, *stages]).encode()
        size = _NAMES + len(names)
        folder = os.environ.get(STATUS_FOLDER)
        if folder is None:
            self._memory = mmap.mmap(-1, size)
        else:
            with _status_file(Path(folder), rank).open("w+b") as file:
                file.truncate(size)
                self._memory = mmap.mmap(file.fileno(), size)
        self._memory[_NAMES:] = names
        self._pid = os.getpid()
        self.write("start")

    def write(self, phase: str, stage: int = -1, micro_batch: int = -1, peer: int = NO_PEER) -> None:
        """Write what this rank does next."""
        number, now = _PHASE_NUMBERS[phase], time.monotonic()
        if self._computing:
            self.computing_seconds += now - self._since
        self._computing, self._since = phase in _COMPUTING, now
        _RECORD.pack_into(self._memory, 0, now, self._pid, self.step, number, stage, micro_batch, peer)

    def write_error(self, error: BaseException) -> None:
        """Write the error that ends this rank. The memory is there already, so this also works on a full disk."""
        text = f"{type(error).__name__}: {error}".encode()[:_ERROR_BYTES]
        self._memory[_RECORD.size : _NAMES] = text.ljust(_ERROR_BYTES, b"\0")

    def last(self) -> RankStatus:
        """Return the status that was written last."""
        return _decode(self._memory[:])


def read_status(folder: str | Path, rank: int) -> RankStatus | None:
    """Return the last status of a rank that was launched with this folder. None: it has not written any."""
    return _read(_status_file(Path(folder), rank))


def read_statuses(folder: Path) -> list[RankStatus]:
    """Return the last status of every rank that has written one."""
    statuses = [_read(path) for path in folder.glob("status-*")]
    return [status for status in statuses if status is not None]


def _status_file(folder: Path, rank: int) -> Path:
    return folder / f"status-{rank}"


def _read(path: Path) -> RankStatus | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    # The writer stores the names first. While the record is all zeros, there is no status yet.
    return _decode(content) if len(content) > _NAMES and any(content[: _RECORD.size]) else None


def _decode(content: bytes) -> RankStatus:
    seconds, pid, step, phase, stage, micro_batch, peer = _RECORD.unpack_from(content)
    error = content[_RECORD.size : _NAMES].rstrip(b"\0").decode(errors="replace")
    host, *names = content[_NAMES:].decode().split("\n")
    return RankStatus(
        host=host,
        pid=pid,
        seconds=seconds,
        step=step,
        phase=_PHASES[phase],
        stage=names[stage] if stage >= 0 else "",
        micro_batch=micro_batch,
        peer=peer,
        error=error,
    )
