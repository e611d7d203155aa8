"""JSON-lines files that a run appends to. If the run was killed, the last line may be incomplete."""

import json
from collections.abc import Iterator
from pathlib import Path

from graphpipe.errors import InvalidInput


def read_json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the place and the content of every complete line. A missing file has no lines.

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


def remove_partial_line(path: Path) -> None:
    """Remove an incomplete last line, so that the next line is not appended to it."""
    if path.exists() and path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                content = path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
