"""recoveries.jsonl: when and how a run continued on other devices, because a rank was lost or a device came back."""

import json
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.files.json_lines import read_json_lines, remove_partial_line
from graphpipe.files.regular_file import append_text
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Why a run stands still, from when a rank is lost until the ranks train again."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    since: float
    """When the failed rank was last heard of, in seconds since the epoch."""
    cause: str
    steps_done: int
    """Steps done before the interruption."""
    devices: tuple[str, ...]
    """The devices on which the run continues."""
    planning_seconds: float | None = None
    """Time taken to plan for these devices."""
    moment: float | None = None
    """The same as `since`, by `time.monotonic` of the machine `clock`. None in files written before this field existed.
    """
    clock: str = ""
    rerouted: bool = False
    """The ranks that are left take over the samples of the lost one, without a checkpoint."""

    @staticmethod
    def of(
        moment: float,
        *,
        cause: str,
        steps_done: int,
        devices: tuple[str, ...],
        planning_seconds: float | None = None,
        rerouted: bool = False,
    ) -> "Interruption":
        """Return an interruption since a moment of this machine's `time.monotonic`."""
        return Interruption(
            since=time.time() - (time.monotonic() - moment),
            cause=cause,
            steps_done=steps_done,
            devices=devices,
            planning_seconds=planning_seconds,
            moment=moment,
            clock=_clock(),
            rerouted=rerouted,
        )

    @property
    def seconds(self) -> float:
        """How long the run has stood still. Another machine, or this one after a restart, can only compare dates."""
        if self.moment is not None and self.clock == _clock():
            return time.monotonic() - self.moment
        return max(0.0, time.time() - self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One recovery, as recoveries.jsonl and the result store it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    cause: str
    step: int
    """The last step that was not repeated. After a restart it is that of the checkpoint, 0 without a checkpoint."""
    steps_lost: int
    """Steps that were done before and had to be repeated."""
    seconds: float
    """From the last sign of life of the failed rank until every rank was ready for the next step."""
    devices: tuple[str, ...]
    """The devices in use from there on."""
    planning_seconds: float | None = None
    """The part of `seconds` that planning took. None in files written before this field existed."""
    rerouted: bool = False
    """The ranks that were left took over the samples of the lost one, without a checkpoint. False: all ranks started
    again."""


def note_interruption(folder: RunFolder, interruption: Interruption) -> None:
    """Write down that a run stands still. If it already stood still, both times count as one interruption."""
    if earlier := _interruption(folder):
        done = max(interruption.steps_done, earlier.steps_done)
        began = {"since": earlier.since, "moment": earlier.moment, "clock": earlier.clock}
        interruption = replace(interruption, steps_done=done, **began)
    write_document(folder.interruption, "recovery", interruption)


def note_recovery(folder: RunFolder, step: int) -> None:
    """Print and write down that an interrupted run continues. Does nothing if the run was not interrupted.

    Args:
        folder: of the run.
        step: the last step that is done.
    """
    interruption = _interruption(folder)
    if interruption is None:
        return
    recovery = Recovery(
        cause=interruption.cause,
        step=step,
        steps_lost=interruption.steps_done - step,
        seconds=interruption.seconds,
        devices=interruption.devices,
        planning_seconds=interruption.planning_seconds,
        rerouted=interruption.rerouted,
    )
    remove_partial_line(folder.recoveries)
    with append_text(folder.recoveries) as file:
        print(json.dumps(to_body(recovery)), file=file)
    folder.interruption.unlink()
    how = "rerouted" if recovery.rerouted else "recovered"
    lost = f"{recovery.steps_lost} step{'' if recovery.steps_lost == 1 else 's'} lost"
    print(
        f"{how} in {format_seconds(recovery.seconds)} on {len(recovery.devices)} devices: training continues after "
        f"step {step}, {lost}",
        file=sys.stderr,
        flush=True,
    )


def read_recoveries(folder: RunFolder) -> tuple[Recovery, ...]:
    """Return the recoveries of a run in order, without a last line that was cut short.

    Raises:
        InvalidInput: the file cannot be read.
    """
    return tuple(from_body(Recovery, body, where) for where, body in read_json_lines(folder.recoveries))


def _clock() -> str:
    # Names what `time.monotonic` counts from: the start of a machine.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _interruption(folder: RunFolder) -> Interruption | None:
    path = folder.interruption
    if not path.exists():
        return None
    return read_document(path, "recovery", lambda body: from_body(Interruption, body, str(path)))
