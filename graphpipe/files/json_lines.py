"""Files of JSON lines that grow while a run goes on, and may end in half a line where it was killed."""

import json
from collections.abc import Iterator
from pathlib import Path

from graphpipe.errors import InvalidInput


def read_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield what every line holds and where it is, up to a line that was not finished; nothing if there is no file.

    Raises:
        InvalidInput: the file cannot be read, or a line before the last is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from None
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            body = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise InvalidInput("is not JSON", where=where) from None
        yield where, body


def end_line(path: Path) -> None:
    """Take half a line from the end of a file, which the next line must not continue."""
    if path.exists() and path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                content = path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
