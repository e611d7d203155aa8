"""Local ranks start, meet on the loopback interface, and fail with one sentence."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from forked_programs import FORKS
from processes import descendants, running_processes, still_running
from run_scenarios import build
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.launch.first_failure import first_failure
from graphpipe.launch.launcher import check_port, launch, waiting_for_ranks
from graphpipe.launch.local_rendezvous import LocalRendezvous
from graphpipe.run.faults.rank_status import STATUS_FOLDER, StatusWriter
from graphpipe.waiting import Advance, shown_by

RANKS = Path(__file__).parents[1] / "support" / "ranks"
WAITING = """
import os, sys
from pathlib import Path
from graphpipe.launch.launcher import launch
folder = sys.argv[1]
Path(folder, "launcher").write_text(str(os.getpid()))
launch("run_jobs:wait", 2, arguments=[folder])
"""


@pytest.fixture(autouse=True)
def jobs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{RANKS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.usefixtures("forked_ranks")
def test_launched_ranks_compute_the_same_as_one_process(tmp_path: Path) -> None:
    from run_models import fan_batch

    launch("run_jobs:steps", 2, arguments=[str(tmp_path)])
    pipeline, _ = build("shared")
    expected = repr([pipeline.step(*fan_batch()) for _ in range(2)])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("01", expected)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "rank 1: InvalidInput: mini-batch 7: is spoiled. The other ranks were stopped."),
        ("kill", "rank 1: was killed by SIGKILL (out of memory, perhaps). The other ranks were stopped."),
    ],
)
def test_the_first_failure_is_reported_once(how: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GraphPipeError) as caught:
        launch("run_jobs:fail", 2, arguments=[how])
    assert str(caught.value) == message
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert "spoiled" not in printed


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from Linux's /proc")
def test_ranks_listen_on_the_loopback_interface_only(tmp_path: Path) -> None:
    launch("run_jobs:listen", 2, arguments=[str(tmp_path)])
    heard = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert set(heard[0] + heard[1]) == {"0100007F"}
    assert len(heard[0]) == len(heard[1]) + 1


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from Linux's /proc")
def test_a_chosen_port_is_open_on_the_loopback_interface_only(tmp_path: Path) -> None:
    port = free_port()
    launch("run_jobs:listeners_at", 2, arguments=[str(tmp_path), str(port)], port=port)
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["127.0.0.1", "127.0.0.1"]
    check_port(port)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from Linux's /proc")
def test_data_sent_to_a_chosen_port_reaches_only_the_ranks_and_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch's agents unpickle what they read from their store. The launcher's store once listened at this port, and ran
    # the code of any process on this machine that wrote to it.
    unpickled: list[bytes] = []
    monkeypatch.setattr("pickle.loads", lambda data, **_: unpickled.append(data))
    port = free_port()
    launch("run_jobs:write_to_store", 2, arguments=[str(tmp_path), str(port)], port=port)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-hosts", "1-meets"]
    assert not unpickled


def test_failures_that_follow_from_another_are_not_reported_as_its_cause() -> None:
    lost, stopped, guilty = (
        ProcessFailure(local_rank=rank, pid=rank, exitcode=code, error_file="")
        for rank, code in enumerate((1, -signal.SIGTERM, 3))
    )
    lost.error_file_data = {"message": {"message": "PeerLost: rank 2 died", "extraInfo": {}}}
    lost.timestamp = stopped.timestamp = guilty.timestamp - 1
    assert str(first_failure({0: lost, 1: stopped, 2: guilty})) == (
        "rank 2: exited with code 3. The other ranks were stopped."
    )
    assert str(first_failure({0: lost, 1: stopped})).startswith("rank 0: PeerLost: rank 2 died.")
    # This rank had not even begun when the other gave up. It hung while it loaded the task, and the other was named.
    stalled = ProcessFailure(local_rank=0, pid=0, exitcode=1, error_file="")
    stalled.error_file_data = {"message": {"message": "PeerStalled: another rank did not answer", "extraInfo": {}}}
    found = str(first_failure({0: stalled, 1: stopped}))
    assert found.startswith("rank 1: did not answer the other ranks within the time limit.")
    # This rank recorded its error, but was stopped before it exited, because a peer had noticed its loss first.
    stopped.error_file_data = {"message": {"message": "InvalidInput: is spoiled", "extraInfo": {}}}
    assert str(first_failure({0: lost, 1: stopped})).startswith("rank 1: InvalidInput: is spoiled.")


def test_a_rank_that_is_killed_after_another_has_hung_is_not_named() -> None:
    """Both were stopped, one of them later than the other. The later one was named, as if it lacked memory."""
    later, hung = (
        ProcessFailure(local_rank=rank, pid=rank, exitcode=-signal.SIGKILL, error_file="") for rank in range(2)
    )
    assert first_failure({0: later, 1: hung}, hung={1: "was stopped (SIGSTOP) for 1 s"}, swept={0}).rank == 1
    assert first_failure({0: later, 1: hung}, hung={1: "did nothing for 1 s"}).rank == 0
    # On a busy machine, torch's agent killed it before the sweep did.
    assert first_failure({0: later, 1: hung}, exits=(1, 0), hung={1: "was stopped (SIGSTOP) for 1 s"}).rank == 1
    assert first_failure({0: later, 1: hung}, exits=(0, 1), hung={1: "did nothing for 1 s"}).rank == 0
    stalled = ProcessFailure(local_rank=2, pid=2, exitcode=1, error_file="")
    stalled.error_file_data = {"message": {"message": "PeerStalled: another rank did not answer", "extraInfo": {}}}
    assert first_failure({0: later, 2: stalled}, swept={0}).rank == 0


ABORT, KILL, STOP = -signal.SIGABRT, -signal.SIGKILL, -signal.SIGTERM


def ended(codes: dict[int, int]) -> dict[int, ProcessFailure]:
    return {
        rank: ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=c, error_file="") for rank, c in codes.items()
    }


@pytest.mark.parametrize(
    ("codes", "exits", "failed", "what"),
    [
        ({0: ABORT, 1: ABORT, 2: KILL, 3: ABORT}, (0, 3, 1, 2), (2,), "and did not react to SIGTERM, so it was killed"),
        ({0: ABORT, 1: ABORT, 2: STOP, 3: ABORT}, (0, 3, 1, 2), (2,), "did not answer the other ranks within the time"),
        ({0: ABORT, 1: ABORT, 2: KILL, 3: ABORT}, (2, 0, 3, 1), (2,), "was killed by SIGKILL (out of memory, perhaps)"),
        ({0: ABORT, 1: ABORT, 2: 3, 3: ABORT}, (2, 0, 3, 1), (2,), "exited with code 3"),
        ({0: ABORT, 1: STOP}, (0, 1), (0,), "was killed by SIGABRT"),
    ],
)
def test_ranks_that_nccls_watchdog_aborted_are_not_blamed(
    codes: dict[int, int], exits: tuple[int, ...], failed: tuple[int, ...], what: str, tmp_path: Path
) -> None:
    """Rank 2 hung, the watchdogs of ranks 0, 1 and 3 ended them with SIGABRT, and an elastic run lost four devices."""
    found = first_failure(ended(codes), tmp_path, [100 + rank for rank in exits])
    assert (found.rank, *found.failed) == (
        failed[0],
        *(rank for rank in failed if codes[rank] < 0 or rank == found.rank),
    )
    assert what in found.what


def test_the_status_of_two_ranks_tells_which_one_the_watchdog_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATUS_FOLDER, str(tmp_path))
    StatusWriter(0, ["left", "right"]).write("receive", 0, 1, peer=1)
    StatusWriter(1, ["left", "right"]).write("forward", 1, 1)
    found = first_failure(ended({0: ABORT, 1: STOP}), tmp_path, [100, 101])
    assert (found.failed, found.what) == ((1,), "did not answer the other ranks within the time limit")
    found = first_failure(ended({0: ABORT, 1: ABORT}), tmp_path, [100, 101])
    assert found.what == "was aborted (SIGABRT), because it had waited for another rank longer than the time limit"
    assert found.failed == (0,)


def test_a_rank_that_cannot_write_its_error_on_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before it exited, a peer that had lost it was named, and an elastic run lost the peer's device."""
    monkeypatch.setenv(STATUS_FOLDER, str(tmp_path))
    StatusWriter(1, ["left"]).write_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    lost, full = (
        ProcessFailure(local_rank=rank, pid=rank, exitcode=code, error_file="")
        for rank, code in enumerate((1, -signal.SIGTERM))
    )
    lost.error_file_data = {"message": {"message": "PeerLost: another rank died", "extraInfo": {}}}
    found = first_failure({0: lost, 1: full}, tmp_path)
    assert (found.rank, found.kind) == (1, "OSError")
    assert "starting): OSError: [Errno 28] No space left on device. The other ranks" in str(found)


def test_ranks_meet_at_a_port_that_no_connection_is_given() -> None:
    """Another process was given the port before rank 0 listened there, and the run failed."""
    ports = {meeting_port(0) for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) < 32_768
    assert meeting_port(40_123) == 40_123


def meeting_port(chosen: int) -> int:
    store = LocalRendezvous(chosen).next_rendezvous().bootstrap_store_info
    assert store is not None
    return store.master_port


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port} cannot be used: Address already in use. Choose another"):
            launch("run_jobs:steps", 2, port=port)
    with pytest.raises(InvalidInput, match="70000 is not a port"):
        check_port(70000)


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)]) as launcher:
        wait_for_ranks(tmp_path)
        ranks = descendants(launcher.pid)
        assert len(ranks) == 2
        if sys.platform == "linux":
            ranks[1].suspend()  # It cannot react by itself.
        launcher.kill()
    assert still_running(ranks, 5) == []


@pytest.mark.skipif(not FORKS, reason="the launcher is then the parent of its ranks")
@pytest.mark.usefixtures("forked_ranks")
def test_ranks_started_by_a_script_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """Their parent is the server of the tests, which keeps running. Only the launcher's lock shows that it has died."""
    with subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], cwd=RANKS) as front:
        wait_for_ranks(tmp_path)
        launcher, *ranks = (psutil.Process(int((tmp_path / name).read_text())) for name in ("launcher", "0", "1"))
        assert launcher.pid != front.pid
        launcher.kill()
    assert still_running(ranks, 5) == []


def wait_for_ranks(folder: Path) -> None:
    end = time.monotonic() + 150
    while sum(path.stat().st_size > 0 for path in folder.glob("[01]")) < 2:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.1)


@pytest.mark.usefixtures("forked_ranks")
def test_an_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    launcher = subprocess.Popen(command, cwd=RANKS, stderr=subprocess.PIPE, text=True)
    wait_for_ranks(tmp_path)
    ranks = running_processes(int((tmp_path / name).read_text()) for name in "01")
    launcher.send_signal(signal.SIGINT)
    _, output = launcher.communicate(timeout=90)
    assert launcher.returncode != 0
    assert "KeyboardInterrupt" in output
    assert "death signal" not in output
    assert len(ranks) == 2
    assert still_running(ranks, 0) == []


def test_the_display_of_a_start_ends_with_the_first_status_or_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def display(what: str) -> Generator[Advance]:
        seen.append(what)
        yield lambda _: None
        seen.append("ended")

    monkeypatch.setenv(STATUS_FOLDER, str(tmp_path))
    with shown_by(display), waiting_for_ranks(tmp_path, 4):
        wait_until(lambda: seen == ["starting 4 processes"])
        StatusWriter(0, ["s0"])
        wait_until(lambda: seen[1:] == ["ended"])
    seen.clear()
    (tmp_path / "empty").mkdir()
    with shown_by(display), waiting_for_ranks(tmp_path / "empty", 2):
        wait_until(lambda: bool(seen))
        assert "ended" not in seen
    assert seen[-1] == "ended"


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
