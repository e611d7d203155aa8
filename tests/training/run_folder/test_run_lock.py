"""A run's folder has one writer, for as long as that lives."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.training.run_folder import run_lock as module
from graphpipe.training.run_folder.run_lock import LOCK, RunLock

# Takes a folder, starts a process that outlives it, says so, and waits to be killed.
OWNER = """
import subprocess, sys, time
from pathlib import Path
from graphpipe.training.run_folder.run_lock import RunLock
with RunLock() as lock:
    lock.take(Path(sys.argv[1]))
    subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL)
    print("taken", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with RunLock() as first:
        first.take(tmp_path)
        first.take(tmp_path)  # it has it already
        with RunLock() as second, pytest.raises(InvalidInput) as caught:
            second.take(tmp_path)
        assert str(caught.value).startswith(
            f"{tmp_path}: another training writes to this run (process {os.getpid()} on"
        )
        assert str(caught.value).endswith("Wait until it has ended, or stop it.")
    with RunLock() as third:
        third.take(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_an_owner_that_is_killed_has_the_folder_no_longer_even_if_what_it_started_lives_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "taken\n"
        with RunLock() as lock, pytest.raises(InvalidInput, match=f"process {owner.pid} on"):
            lock.take(tmp_path)
        owner.kill()
    with RunLock() as lock:
        lock.take(tmp_path)


def test_an_owner_may_be_given_time_to_end(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        start = time.monotonic()
        with RunLock() as lock, pytest.raises(InvalidInput):
            lock.take(tmp_path, 0.3)
        assert time.monotonic() - start > 0.3
        owner.kill()
        with RunLock() as lock:
            lock.take(tmp_path, 20.0)


def test_a_file_system_without_locks_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", none)
    with RunLock() as first, RunLock() as second:
        first.take(tmp_path)
        second.take(tmp_path)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with RunLock() as lock:
        lock.take(tmp_path / "none")
    assert not (tmp_path / "none").exists()
