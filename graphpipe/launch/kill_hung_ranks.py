"""Kills ranks that hang, and those that do not end soon after another rank has failed.

A process that was stopped (SIGSTOP) or hangs in a driver does not react to SIGTERM. Torch's agent would wait half a
minute for it, or without any limit if no other rank fails.
"""

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from graphpipe.launch.hung_ranks import HungRanks
from graphpipe.run.faults.rank_status import STATUS_FOLDER

GRACE_SECONDS, POLL_SECONDS = 2.0, 0.2


@contextmanager
def kill_hung_ranks(folder: Path, ranks: HungRanks) -> Generator[None]:
    """While the block runs, kill the ranks that hang, and those that have not ended a moment after one has failed.

    Only processes that this one has started as ranks are killed.

    Args:
        folder: the ranks' status files and error files.
        ranks: that the block starts.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, ranks, over), daemon=True, name="graphpipe-kill-hung-ranks")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(folder: Path, ranks: HungRanks, over: threading.Event) -> None:
    processes: dict[int, int] = {}
    while not over.wait(POLL_SECONDS):
        if len(processes) < ranks.count:
            processes |= _children(folder)
        ranks.look(processes)
        if any(folder.rglob("error.json")) or ranks.failed():
            break
    end = time.monotonic() + GRACE_SECONDS
    while not over.wait(POLL_SECONDS):
        if time.monotonic() > end:
            ranks.sweep()


def _children(folder: Path) -> dict[int, int]:
    """Return the process ids of the ranks that this process has started, by rank."""
    processes: dict[int, int] = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            own = child.environ()
            if own.get(STATUS_FOLDER) == os.fspath(folder):
                processes[int(own.get("LOCAL_RANK", "0"))] = child.pid
    return processes
