"""Hides what only Linux has from every Python process whose PYTHONPATH has this folder: `make test-portable`.

Psutil keeps `/proc`, because it has other ways on other systems. What is written in C keeps everything.
"""

import ctypes
import errno
import os
import select
import sys
from typing import Any

NAMES = ((os, "pidfd_open"), (os, "sched_getaffinity"), (os, "sched_setaffinity"), (select, "epoll"))
FOLDERS = ("/proc", "/dev/shm")
MAY_LOOK = ("psutil",)


class LibraryWithoutPrctl(ctypes.CDLL):
    """A library of C, in which `prctl` is not found."""

    def __getattr__(self, name: str) -> Any:
        """Return a function of the library."""
        if name == "prctl":
            raise AttributeError("symbol not found: prctl")
        return super().__getattr__(name)


def refuse(path: object) -> None:
    """Raise for a path in a folder that only Linux has, unless psutil asks."""
    try:
        text = os.fsdecode(path)  # pyright: ignore[reportArgumentType]
    except TypeError:  # an open file
        return
    if not any(text == folder or text.startswith(folder + "/") for folder in FOLDERS):
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in MAY_LOOK:
            return
        frame = frame.f_back
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)


def hide() -> None:
    """Hide it from this process."""
    for module, name in NAMES:
        if hasattr(module, name):
            delattr(module, name)
    ctypes.CDLL = LibraryWithoutPrctl  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("stat", "lstat", "listdir", "scandir", "readlink", "access"):
        setattr(os, name, refusing(getattr(os, name)))
    sys.addaudithook(lambda event, words: refuse(words[0]) if event == "open" else None)


def refusing(call: Any) -> Any:
    """Return a function of paths that refuses some of them."""

    def refused(path: Any = ".", *words: Any, **options: Any) -> Any:
        refuse(path)
        return call(path, *words, **options)

    return refused


hide()
