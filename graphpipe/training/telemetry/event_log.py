"""The event file of one rank: one line per event, written as it happens."""

import json
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from traceback import format_exception
from typing import Any, TextIO, cast, get_args

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_lines import remove_partial_line
from graphpipe.files.regular_file import append_text, read_bytes, refuse_link
from graphpipe.run.worker.recorder import CurrentWork
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import VERSION, Event, EventLine, FailureEvent

_KINDS = {next(f.default for f in fields(kind) if f.name == "event") for kind in get_args(Event)}


class EventLog:
    """Appends the events of a rank to its file, and flushes every line.

    Args:
        file: open for appending.
        rank: of this process.
    """

    def __init__(self, file: TextIO, rank: int) -> None:
        self._file, self._rank = file, rank

    def write(self, event: Event) -> None:
        """Append an event with the current time."""
        head = {"schema_version": VERSION, "event": event.event, "rank": self._rank, "unix_seconds": time.time()}
        print(json.dumps(head | to_body(event), allow_nan=False), file=self._file, flush=True)


@contextmanager
def open_event_log(folder: RunFolder, rank: int) -> Generator[EventLog]:
    """Open the event file of a rank to append to it. A resumed run continues the file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    path = folder.events(rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(path.parent)
        remove_partial_line(path)
        file = append_text(path)
    except OSError as error:
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None
    with file:
        yield EventLog(file, rank)


def failure_event(error: BaseException, step: int, doing: CurrentWork | None, stages: Sequence[str]) -> FailureEvent:
    """Return the event for an error.

    Args:
        error: ended training.
        step: the step in which it was raised.
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


def read_events(path: str | Path) -> list[EventLine]:
    """Return the events of a file, without events of unknown kinds and without a last line that was cut short.

    Raises:
        InvalidInput: the file cannot be read, or a line is not an event of this schema version.
    """
    return read_new_events(path, 0)[0]


def read_new_events(path: str | Path, start: int, kinds: Collection[str] | None = None) -> tuple[list[EventLine], int]:
    """Return the events behind a position, and the position behind the last complete line.

    Args:
        path: of the file.
        start: the position, in bytes.
        kinds: of the events that are wanted. Most lines are of others, and are not read closely then. None: all.

    Raises:
        InvalidInput: as `read_events`.
    """
    try:
        content = read_bytes(Path(path), start)
        content = content[: content.rfind(b"\n") + 1]
        lines = content.decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from None
    marks = [json.dumps({"event": kind})[1:-1] for kind in kinds or ()]
    found: list[EventLine] = []
    for number, text in enumerate(lines[:-1], start=1):
        if kinds is not None and not any(mark in text for mark in marks):
            continue
        body = _body(text, where := f"{path}, line {number}" + f" after byte {start}" * bool(start))
        if body["event"] in _KINDS:
            head = {"rank": body.pop("rank", None), "unix_seconds": body.pop("unix_seconds", None)}
            found.append(from_body(EventLine, head | {"event": body}, where))
    return found, start + len(content)


def _body(text: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise InvalidInput("is not JSON", where=where) from None
    except RecursionError:
        raise InvalidInput("is nested too deeply", where=where) from None
    if not isinstance(body, dict) or body.pop("schema_version", None) != VERSION or "event" not in body:
        raise InvalidInput(f"is not an event of schema version {VERSION}", where=where)
    return cast(dict[str, Any], body)
