"""Locks on files.

The system releases a lock when its owner ends, however it ends, so there are no stale locks. A program that the owner
starts does not inherit the lock. A fork of the owner (`os.fork`) holds it, too, until the fork ends or the owner
releases the lock.
"""

import errno
import fcntl
import os

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of file systems without locks."""


def acquire(file: int, *, wait: bool = False) -> bool | None:
    """Lock an open file.

    Args:
        file: its descriptor.
        wait: wait until another process releases it.

    Returns:
        Whether the file is locked now; None if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def release(file: int) -> None:
    """Release the lock of a file, also for forks of this process, and close the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(file)
