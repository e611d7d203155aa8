"""Regular files of a run's folder: a link or a pipe in their place is refused, and nothing outside is touched."""

import errno
import os
import stat
from pathlib import Path
from typing import TextIO

from graphpipe.errors import InvalidInput

_REMEDY = "Remove it, or use another folder."


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, and return its descriptor.

    Args:
        path: of the file. Its folder may not be a link either, if it is one of the run's own (see `refuse_link`).
        flags: of `os.open`. A new file gets the permissions that the umask leaves.

    Raises:
        InvalidInput: it is a link, a pipe or a folder.
        OSError: it cannot be opened.
    """
    try:
        # A pipe without a partner would be waited for.
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidInput("is a link, must be a file", where=str(path), remedy=_REMEDY) from None
        if error.errno not in (errno.ENXIO, errno.EISDIR):
            raise
        raise InvalidInput("is not a file", where=str(path), remedy=_REMEDY) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InvalidInput("is not a file", where=str(path), remedy=_REMEDY)
    return file


def append_text(path: Path) -> TextIO:
    """Open a regular file to append lines in UTF-8.

    Raises:
        InvalidInput, OSError: as `open_regular`.
    """
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")


def read_bytes(path: Path, start: int = 0) -> bytes:
    """Return the content of a regular file behind a position.

    Raises:
        InvalidInput, OSError: as `open_regular`.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        file.seek(start)
        return file.read()


def refuse_link(folder: Path) -> None:
    """Check that a folder is not a link.

    Raises:
        InvalidInput: it is.
    """
    if folder.is_symlink():
        raise InvalidInput("is a link, must be a folder", where=str(folder), remedy=_REMEDY)
