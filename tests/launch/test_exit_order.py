"""The order in which the children of a launch ended, and what it says about a rank that somebody else stopped."""

import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe.launch import exit_order
from graphpipe.launch.exit_order import recording_exits
from graphpipe.launch.first_failure import first_failure

ON_LINUX = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells when a process has ended")


@ON_LINUX
@pytest.mark.timeout(240)
def test_a_rank_that_somebody_else_stopped_is_the_first_to_fail() -> None:
    """A batch system stopped one rank with SIGTERM. The launcher stopped the others so too, and rank 0 was named."""
    with subprocess.Popen(["sleep", "60"]) as earlier:
        with recording_exits(3) as exits:
            ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
            wait_until_watched(len(ranks))
            for each in (ranks[2], ranks[0], ranks[1]):
                each.terminate()
                each.wait()
        earlier.kill()
    assert exits == [ranks[2].pid, ranks[0].pid, ranks[1].pid]
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=each.pid, exitcode=-signal.SIGTERM, error_file="")
        for rank, each in enumerate(ranks)
    }
    assert str(first_failure(failures, exits=exits)) == "rank 2: was killed by SIGTERM. The other ranks were stopped."
    # A peer that lost it raised an error, and has ended before the launcher looked.
    failures[0].exitcode = 1
    failures[0].error_file_data = {"message": {"message": "PeerLost: rank 2 died", "extraInfo": {}}}
    found = first_failure(failures, exits=exits)
    assert (found.rank, found.failed) == (2, (2,))


@ON_LINUX
def test_the_order_stays_unknown_where_a_container_forbids_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int) -> int:
        tried.append(pid)
        raise PermissionError

    tried: list[int] = []
    monkeypatch.setattr(os, "pidfd_open", forbidden)
    with recording_exits(1) as exits:
        child = subprocess.Popen(["sleep", "60"])
        end = time.monotonic() + 100
        while not tried and time.monotonic() < end:
            time.sleep(0.02)
        child.kill()
        child.wait()
    assert tried == [child.pid]
    assert exits == []


@ON_LINUX
@pytest.mark.timeout(240)
def test_the_order_is_right_if_all_have_ended_before_anybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the watching thread came late: two ranks had ended, and the lower number was named."""
    look = threading.Event()
    look.set()

    class LateEpoll:
        def __init__(self) -> None:
            self.real = epoll()
            self.close, self.register, self.unregister = self.real.close, self.real.register, self.real.unregister

        def poll(self, _: float) -> list[tuple[int, int]]:
            look.wait()
            return self.real.poll(0)

    epoll = select.epoll
    monkeypatch.setattr(exit_order.select, "epoll", LateEpoll)
    with recording_exits(4) as exits:
        ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
        wait_until_watched(len(ranks))
        look.clear()
        ended = [ranks[at] for at in (2, 0, 3, 1)]
        for each in ended:
            each.terminate()
            each.wait()
        look.set()
    assert exits == [each.pid for each in ended]


def wait_until_watched(count: int) -> None:
    end = time.monotonic() + 100
    while watched() < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def watched() -> int:
    """Return how many processes have their descriptor in an epoll of this process."""
    found = 0
    for info in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            targets = [line.split()[1] for line in info.read_text().splitlines() if line.startswith("tfd:")]
            found += sum("pidfd" in os.readlink(f"/proc/self/fd/{target}") for target in targets)
    return found


def test_a_rank_that_the_launcher_stopped_is_not_the_first_to_fail() -> None:
    lost, stopped = (
        ProcessFailure(local_rank=rank, pid=7 + rank, exitcode=code, error_file="")
        for rank, code in enumerate((1, -signal.SIGTERM))
    )
    lost.error_file_data = {"message": {"message": "PeerLost: rank 2 died", "extraInfo": {}}}
    assert first_failure({0: lost, 1: stopped}, exits=[7, 8]).rank == 0
