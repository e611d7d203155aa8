"""Kills ranks that do not end soon after another rank has failed. Torch's agent would wait half a minute for them.

A process that was stopped (SIGSTOP) or hangs in a driver does not react to SIGTERM.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from graphpipe.run.faults.rank_status import read_statuses

GRACE_SECONDS, POLL_SECONDS = 2.0, 0.2


@contextmanager
def kill_hung_ranks(folder: Path) -> Generator[None]:
    """While the block runs, kill the ranks that have not ended a moment after one has failed.

    Only child processes of this process that have written a rank status are killed.

    Args:
        folder: the ranks' status files and error files.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, over), daemon=True, name="graphpipe-kill-hung-ranks")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(folder: Path, over: threading.Event) -> None:
    while not over.wait(POLL_SECONDS):
        if any(folder.rglob("error.json")):
            break
    end = time.monotonic() + GRACE_SECONDS
    while not over.wait(POLL_SECONDS):
        if time.monotonic() > end:
            _kill_ranks(folder)


def _kill_ranks(folder: Path) -> None:
    ranks = {status.pid for status in read_statuses(folder)}
    for child in psutil.Process().children():
        if child.pid in ranks:
            child.kill()
