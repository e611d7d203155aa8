"""A run's folder has one writer, as long as its process lives."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.files import lock
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock

# Locks a folder, starts a process that outlives it, prints a line, and waits to be killed.
OWNER = """
import subprocess, sys, time
from pathlib import Path
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
with RunLock() as run_lock:
    run_lock.take(RunFolder(Path(sys.argv[1])))
    subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL)
    print("taken", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with RunLock() as first:
        first.take(RunFolder(tmp_path))
        first.take(RunFolder(tmp_path))  # is locked already
        with RunLock() as second, pytest.raises(InvalidInput) as caught:
            second.take(RunFolder(tmp_path))
        assert str(caught.value).startswith(
            f"{tmp_path}: another training writes to this run (process {os.getpid()} on"
        )
        assert str(caught.value).endswith("Wait until it has ended, or stop it.")
    with RunLock() as third:
        third.take(RunFolder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_killed_owner_releases_the_folder_even_if_its_children_live_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "taken\n"
        with RunLock() as run_lock, pytest.raises(InvalidInput, match=f"process {owner.pid} on"):
            run_lock.take(RunFolder(tmp_path))
        owner.kill()
    with RunLock() as run_lock:
        run_lock.take(RunFolder(tmp_path))


def test_a_second_writer_can_wait_for_the_first(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        start = time.monotonic()
        with RunLock() as run_lock, pytest.raises(InvalidInput):
            run_lock.take(RunFolder(tmp_path), 0.3)
        assert time.monotonic() - start > 0.3
        owner.kill()
        with RunLock() as run_lock:
            run_lock.take(RunFolder(tmp_path), 20.0)


def test_file_systems_without_locks_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with RunLock() as first, RunLock() as second:
        first.take(RunFolder(tmp_path))
        second.take(RunFolder(tmp_path))


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with RunLock() as run_lock:
        run_lock.take(RunFolder(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
