"""Groups are aborted side by side, and not for longer than the process can wait."""

import threading
import time
from types import SimpleNamespace
from typing import Any

from graphpipe.run.meeting.abort_groups import abort_groups


def test_groups_that_wait_for_each_other_are_aborted_together() -> None:
    """NCCL waits for the kernels of all communicators of a GPU while it aborts one of them."""
    all_begun = threading.Barrier(3)
    groups: list[Any] = [SimpleNamespace(abort=lambda: all_begun.wait(5)) for _ in range(3)]
    assert abort_groups(groups, 5)


def test_a_group_that_does_not_end_is_left() -> None:
    never = threading.Event()
    start = time.monotonic()
    group: Any = SimpleNamespace(abort=lambda: never.wait(20))
    assert not abort_groups([group], 0.1)
    assert time.monotonic() - start < 5
    never.set()


def test_a_group_that_the_watchdog_has_aborted_is_no_error() -> None:
    def aborted() -> None:
        raise RuntimeError("NCCL communicator was aborted")

    group: Any = SimpleNamespace(abort=aborted)
    assert abort_groups([group], 5)
