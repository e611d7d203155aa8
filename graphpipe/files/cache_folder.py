"""The folder in which results are kept for later commands, as the XDG Base Directory Specification says."""

import os
import shutil
from contextlib import suppress
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
    for parent in (*reversed(folder.parents), folder):
        parent.mkdir(mode=0o700, exist_ok=True)


def keep_newest(folder: Path, most: int) -> None:
    """Remove all but the newest entries of a folder. An entry is a file or a folder, and its age is its time of change.

    Another process may remove entries at the same time.

    Args:
        folder: of the cache.
        most: the number of entries that stay.

    Raises:
        OSError: the folder cannot be read, or an entry cannot be removed.
    """
    ages: dict[Path, float] = {}
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            ages[entry] = entry.stat().st_mtime
    for old in sorted(ages, key=ages.__getitem__)[: max(0, len(ages) - most)]:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
