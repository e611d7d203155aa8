"""Where a rank is in its work, noted in a file that its launcher reads when the rank can no longer speak.

A rank that is killed or stopped says nothing, and its peers know only whom they waited for. So every rank notes what
it is about to do in a small mapped file (half a microsecond), which outlives it.
"""

import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WATCH = "GRAPHPIPE_WATCH"
"""The environment variable that names the folder of these files; without it a rank notes for itself alone."""

NOBODY, EVERYBODY = -1, -2
"""Whom a rank waits for, if not for one peer."""

# Seconds since the epoch, process, step, phase, stage, micro-batch, peer; then the host and the names of the stages.
_RECORD = struct.Struct("<d6i")
_PHASES = (
    "start",
    "data",
    "agree",
    "forward",
    "backward",
    "send",
    "receive",
    "reduce",
    "tally",
    "optimizer",
    "buffers",
    "checkpoint",
)
_WORDS = {
    "start": "starting",
    "data": "between two steps",
    "agree": "comparing its mini-batch with the other ranks'",
    "tally": "waiting for all ranks to end the step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What a rank was about to do when it was last heard of."""

    host: str
    pid: int
    seconds: float
    """Since the epoch."""
    step: int
    """From 1."""
    phase: str
    stage: str
    """Empty where the phase is of no stage."""
    micro_batch: int
    peer: int
    """The rank it waited for, or `NOBODY` or `EVERYBODY`."""

    def __str__(self) -> str:
        """Return it as the end of a sentence: host, stage, step, task."""
        task = _WORDS.get(self.phase, self.phase) + (f" of micro-batch {self.micro_batch}" * (self.micro_batch >= 0))
        stage = f"stage '{self.stage}', " if self.stage else ""
        return f"host {self.host}, {stage}step {self.step}, {task}"


class Notebook:
    """This rank's notes of where it is; the last one counts.

    Args:
        rank: this one.
        stages: names, by position.
    """

    def __init__(self, rank: int, stages: Sequence[str]) -> None:
        self.step = 1
        self.host = socket.gethostname()
        names = "\n".join([self.host, *stages]).encode()
        size = _RECORD.size + len(names)
        folder = os.environ.get(WATCH)
        if folder is None:
            self._memory = mmap.mmap(-1, size)
        else:
            with _file(Path(folder), rank).open("w+b") as file:
                file.truncate(size)
                self._memory = mmap.mmap(file.fileno(), size)
        self._memory[_RECORD.size :] = names
        self._pid = os.getpid()
        self.note("start")

    def note(self, phase: str, stage: int = -1, micro_batch: int = -1, peer: int = NOBODY) -> None:
        """Note what comes next."""
        _RECORD.pack_into(self._memory, 0, time.time(), self._pid, self.step, _NUMBERS[phase], stage, micro_batch, peer)

    def last(self) -> Whereabouts:
        """Return the last note."""
        return _decode(self._memory[:])


def last_seen(folder: str | Path, rank: int) -> Whereabouts | None:
    """Return the last note of a rank that was launched with this folder; None if it made none."""
    return _read(_file(Path(folder), rank))


def all_seen(folder: Path) -> list[Whereabouts]:
    """Return the last notes of all ranks that made any."""
    notes = [_read(path) for path in folder.glob("watch-*")]
    return [note for note in notes if note is not None]


_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}


def _file(folder: Path, rank: int) -> Path:
    return folder / f"watch-{rank}"


def _read(path: Path) -> Whereabouts | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    # Names come first, then the first note: without it there is nothing to tell.
    return _decode(content) if len(content) > _RECORD.size and any(content[: _RECORD.size]) else None


def _decode(content: bytes) -> Whereabouts:
    seconds, pid, step, phase, stage, micro_batch, peer = _RECORD.unpack_from(content)
    host, *names = content[_RECORD.size :].decode().split("\n")
    return Whereabouts(
        host=host,
        pid=pid,
        seconds=seconds,
        step=step,
        phase=_PHASES[phase],
        stage=names[stage] if stage >= 0 else "",
        micro_batch=micro_batch,
        peer=peer,
    )
