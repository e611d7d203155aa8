"""Shows that ranks are starting, until one of them shows something itself."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

from graphpipe.run.faults.rank_status import read_statuses
from graphpipe.waiting import waiting

LOOK_SECONDS = 0.05


@contextmanager
def waiting_for_ranks(folder: Path, count: int) -> Generator[None]:
    """Show what happens until a rank has written its first status, or the block ends.

    Args:
        folder: where the ranks write their statuses.
        count: number of ranks.
    """
    ended = threading.Event()

    def show() -> None:
        with waiting(f"starting {count} processes"):
            while not read_statuses(folder) and not ended.wait(LOOK_SECONDS):
                pass

    # A new thread begins with an empty context, which does not have the display.
    thread = threading.Thread(target=copy_context().run, args=(show,), daemon=True, name="graphpipe-await-ranks")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
