"""Text files in UTF-8: read with plain errors, written in one piece."""

import os
from pathlib import Path
from secrets import token_hex

from graphpipe.errors import InvalidInput


def read_text(path: str | Path) -> str:
    """Return the content of a text file.

    Raises:
        InvalidInput: the file is missing, cannot be read, or is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("not a text file", where=str(path), remedy="Give a file in UTF-8.") from None


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path`. A reader sees the old file or the whole new one, never a part.

    Raises:
        InvalidInput: the file cannot be written; the old file is unchanged.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}{token_hex(4)}.part")
        file = temporary.open("x", encoding="utf-8")  # with the permissions that the umask leaves
    except OSError as error:
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None
    try:
        with file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None
