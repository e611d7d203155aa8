"""In which order the ranks of a launch ended.

The launcher stops the other ranks with SIGTERM once one has failed. A rank that somebody else stopped with SIGTERM
ends in the same way, so only the order tells it from the others. Linux reports the end of a process through a file
descriptor of it (`pidfd_open`). However late it is asked, `epoll` lists them in the order in which the processes ended;
`poll` lists them in the order in which they were registered. On other systems the order stays unknown.
"""

import os
import select
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

SEARCH_SECONDS, POLL_SECONDS = 0.05, 0.5


@contextmanager
def recording_exits(count: int) -> Generator[list[int]]:
    """Return the process ids of children that end in the block, in order. The list is complete after the block.

    Args:
        count: of the children that this thread starts in the block.
    """
    order: list[int] = []
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    if not (hasattr(os, "pidfd_open") and hasattr(select, "epoll") and children.exists()):
        yield order
        return
    over = threading.Event()
    watch = _Watch(children, count, order, over)
    thread = threading.Thread(target=watch.run, daemon=True, name="graphpipe-exit-order")
    thread.start()
    try:
        yield order
    finally:
        over.set()
        thread.join()


class _Watch:
    """Waits for children.

    Args:
        children: the kernel's list of the children of a thread.
        count: of the new children.
        order: the children that have ended are appended.
        over: ends the watch.
    """

    def __init__(self, children: Path, count: int, order: list[int], over: threading.Event) -> None:
        self._children, self._count, self._order, self._over = children, count, order, over
        self._before = self._listed()
        self._pids: dict[int, int] = {}
        self._poll = select.epoll()

    def run(self) -> None:
        """Watch until all have ended, or the block is over. Do nothing where the kernel or a container forbids it."""
        with suppress(OSError):
            self._watch()
        self._poll.close()
        for file in self._pids:
            os.close(file)

    def _watch(self) -> None:
        while not self._over.is_set() and len(self._order) < self._count:
            searching = len(self._pids) < self._count
            if searching:
                self._search()
            self._note_ended(SEARCH_SECONDS if searching else POLL_SECONDS)
        self._note_ended(0.0)

    def _listed(self) -> set[int]:
        return {int(word) for word in self._children.read_text().split()}

    def _search(self) -> None:
        for pid in self._listed() - self._before:
            self._before.add(pid)
            with suppress(ProcessLookupError):
                self._pids[file := os.pidfd_open(pid)] = pid
                self._poll.register(file, select.EPOLLIN)

    def _note_ended(self, seconds: float) -> None:
        for file, _ in self._poll.poll(seconds):
            self._poll.unregister(file)
            self._order.append(self._pids[file])
