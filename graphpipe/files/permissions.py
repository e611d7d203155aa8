"""The permissions of new files. The umask of the process decides them, and some libraries ignore it."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE


@contextmanager
def with_usual_permissions(path: Path) -> Generator[None]:
    """Give the file that the block writes the permissions of any new file, and leave no file after an error.

    safetensors, for example, writes files that only their owner can read.

    Raises:
        OSError: the file cannot be written.
    """
    path.unlink(missing_ok=True)
    # The kernel applies the umask. A process that asks for it changes it for all its threads.
    path.touch(exist_ok=False)
    mode = S_IMODE(path.stat().st_mode)
    try:
        yield
        path.chmod(mode)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
