"""The events of one rank as a file: a line each, written as it happens."""

import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from traceback import format_exception
from typing import Any, TextIO, cast, get_args

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import from_body, to_body
from graphpipe.files.json_lines import end_line
from graphpipe.run.step.recorder import Doing
from graphpipe.training.telemetry.event import VERSION, Event, FailureEvent, Line

EVENTS = "events"
_KINDS = {next(f.default for f in fields(kind) if f.name == "event") for kind in get_args(Event)}


class EventLog:
    """Appends the events of a rank to its file in the folder of a run; every line is flushed.

    Args:
        file: open to append.
        rank: whose events they are.
    """

    def __init__(self, file: TextIO, rank: int) -> None:
        self._file, self._rank = file, rank

    def write(self, event: Event) -> None:
        """Append an event, with the time it is now."""
        head = {"schema_version": VERSION, "event": event.event, "rank": self._rank, "unix_seconds": time.time()}
        print(json.dumps(head | to_body(event), allow_nan=False), file=self._file, flush=True)


@contextmanager
def open_events(directory: Path, rank: int) -> Generator[EventLog]:
    """Open the events of a rank, after those of the run that this one goes on with.

    Raises:
        InvalidInput: the file cannot be written.
    """
    path = events_file(directory, rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        end_line(path)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None
    with file:
        yield EventLog(file, rank)


def events_file(directory: Path, rank: int) -> Path:
    """Return the path of a rank's events."""
    return directory / EVENTS / f"rank-{rank}.jsonl"


def failure(error: BaseException, step: int, doing: Doing | None, stages: Sequence[str]) -> FailureEvent:
    """Return the event of an error.

    Args:
        error: that ended training.
        step: that was under way.
        doing: what the rank was doing, if anything.
        stages: names of the plan's stages.
    """
    return FailureEvent(
        step=step,
        error=type(error).__name__,
        message=str(error),
        task=doing.kind if doing else None,
        stage=stages[doing.stage] if doing else None,
        micro_batch=doing.micro_batch if doing and doing.micro_batch >= 0 else None,
        traceback="".join(format_exception(error)),
    )


def read_events(path: str | Path) -> list[Line]:
    """Return the events of a file, up to a line that was not finished; those of an unknown kind are left out.

    Raises:
        InvalidInput: the file cannot be read, a line is not an event, or is of another schema version.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from None
    found: list[Line] = []
    for number, text in enumerate(lines[:-1], start=1):
        body = _body(text, where := f"{path}, line {number}")
        if body["event"] in _KINDS:
            head = {"rank": body.pop("rank", None), "unix_seconds": body.pop("unix_seconds", None)}
            found.append(from_body(Line, head | {"event": body}, where))
    return found


def _body(text: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise InvalidInput("is not JSON", where=where) from None
    if not isinstance(body, dict) or body.pop("schema_version", None) != VERSION or "event" not in body:
        raise InvalidInput(f"is not an event of schema version {VERSION}", where=where)
    return cast(dict[str, Any], body)
