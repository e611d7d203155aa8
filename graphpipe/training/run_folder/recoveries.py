"""What it took to go on after a rank was lost, or with a device that is back: told once, kept in the run's folder."""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.files.json_document import from_body, read_document, to_body, write_document
from graphpipe.files.json_lines import end_line, read_lines
from graphpipe.units import format_seconds

RECOVERIES = "recoveries.jsonl"
_PENDING = "recovering.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A run that stands still."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    since: float
    """Seconds since the epoch: when the rank that failed was last heard of."""
    cause: str
    steps_done: int
    """Before it stood still."""
    devices: tuple[str, ...]
    """On which it goes on."""
    planning_seconds: float | None = None
    """To plan for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A run that went on with another plan, as recoveries.jsonl and the result have it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    cause: str
    step: int
    """After which it went on: that of the checkpoint, 0 without one."""
    steps_lost: int
    """Done before, and done once more."""
    seconds: float
    """From the last sign of life of the rank that failed until every rank was ready for the next step."""
    devices: tuple[str, ...]
    """In use from there on."""
    planning_seconds: float | None = None
    """Of these seconds, to plan for the devices; None in files of a version that did not tell."""


def stand_still(directory: Path, pending: Pending) -> None:
    """Note that a run stands still; what it has stood still for already counts too."""
    earlier = _pending(directory)
    since = min(pending.since, earlier.since) if earlier else pending.since
    done = max(pending.steps_done, earlier.steps_done) if earlier else pending.steps_done
    write_document(directory / _PENDING, "recovery", replace(pending, since=since, steps_done=done))


def go_on(directory: Path, step: int) -> None:
    """Tell, and note, that a run which stood still goes on after this step; nothing if it did not stand still."""
    pending = _pending(directory)
    if pending is None:
        return
    recovery = Recovery(
        cause=pending.cause,
        step=step,
        steps_lost=pending.steps_done - step,
        seconds=time.time() - pending.since,
        devices=pending.devices,
        planning_seconds=pending.planning_seconds,
    )
    end_line(directory / RECOVERIES)
    with (directory / RECOVERIES).open("a", encoding="utf-8") as file:
        print(json.dumps(to_body(recovery)), file=file)
    (directory / _PENDING).unlink()
    lost = f"{recovery.steps_lost} step{'' if recovery.steps_lost == 1 else 's'} lost"
    print(
        f"recovered in {format_seconds(recovery.seconds)} on {len(recovery.devices)} devices: training goes on after "
        f"step {step}, {lost}",
        file=sys.stderr,
        flush=True,
    )


def read_recoveries(directory: Path) -> tuple[Recovery, ...]:
    """Return the recoveries of a run, in order, but for one that was not written to its end.

    Raises:
        InvalidInput: they cannot be read.
    """
    return tuple(from_body(Recovery, body, where) for where, body in read_lines(directory / RECOVERIES))


def _pending(directory: Path) -> Pending | None:
    path = directory / _PENDING
    return read_document(path, "recovery", lambda body: from_body(Pending, body, str(path))) if path.exists() else None
