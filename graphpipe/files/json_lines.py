"""JSON-lines files that a run appends to. If the run was killed, the last line may be incomplete."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from graphpipe.errors import InvalidInput
from graphpipe.files.regular_file import open_regular, read_bytes


def read_json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the place and the content of every complete line. A missing file has no lines.

    Raises:
        InvalidInput: the file cannot be read, or a line before the last is not JSON.
    """
    try:
        lines = read_bytes(path).decode("utf-8").splitlines() if path.is_symlink() or path.exists() else []
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
        except RecursionError:
            raise InvalidInput("is nested too deeply", where=where) from None
        yield where, body


def remove_partial_line(path: Path) -> None:
    """Remove an incomplete last line, so that the next line is not appended to it.

    Raises:
        InvalidInput: it is a link or no file.
        OSError: it cannot be changed.
    """
    if not (path.is_symlink() or path.exists()):
        return
    with os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
