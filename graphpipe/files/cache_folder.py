"""The folder in which results are kept for later commands, as the XDG Base Directory Specification says."""

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return `$XDG_CACHE_HOME/graphpipe`, or `~/.cache/graphpipe`; None if the user has no home.

    The folder need not exist.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the specification says to ignore a relative path
        return given / "graphpipe"
    try:
        return Path.home() / ".cache" / "graphpipe"
    except RuntimeError:
        return None


def make_private(folder: Path) -> None:
    """Make a folder of the cache, and its parents, for their owner only.

    Raises:
        OSError: it cannot be made.
    """
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)
