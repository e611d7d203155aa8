"""Copies of this process that work at the same time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from graphpipe.profiler.contention import under_contention

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process that has torch loaded")


def copies() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def wait_until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not found() and time.monotonic() < end:
        time.sleep(0.01)
    assert found()


def test_copies_work_until_the_block_ends(tmp_path: Path) -> None:
    before = copies()

    def work(between: Callable[[], object]) -> None:
        between()
        with (tmp_path / str(os.getpid())).open("a") as file:
            file.write("x")
        time.sleep(0.001)

    with under_contention(2, work):
        assert len(copies() - before) == 2
        wait_until(lambda: [len(file.read_text()) > 2 for file in tmp_path.iterdir()] == [True, True])
    assert copies() == before
    assert {file.name for file in tmp_path.iterdir()}.isdisjoint({str(os.getpid())})


def test_a_copy_that_fails_ends_silently_and_nothing_else_does(capfd: pytest.CaptureFixture[str]) -> None:
    def work(_: Callable[[], object]) -> None:
        raise RuntimeError("in a copy")

    before = copies()
    with under_contention(1, work):
        wait_until(lambda: copies() == before)
    assert capfd.readouterr() == ("", "")


def test_an_error_in_the_block_ends_the_copies() -> None:
    before = copies()
    with pytest.raises(ValueError, match="in the block"), under_contention(1, lambda _: time.sleep(0.01)):
        raise ValueError("in the block")
    assert copies() == before


def test_copies_of_a_killed_process_do_not_outlive_it() -> None:
    code = """
import sys, time
from graphpipe.profiler.contention import under_contention
def work(between):
    between()
    time.sleep(0.01)
with under_contention(1, work):
    print("ready", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as original:
        assert original.stdout is not None
        assert original.stdout.readline() == "ready\n"
        (copy,) = psutil.Process(original.pid).children()
        os.kill(original.pid, signal.SIGKILL)
        original.wait(20)
        wait_until(lambda: not copy.is_running() or copy.status() == psutil.STATUS_ZOMBIE)


def test_zero_copies_start_no_process() -> None:
    before = copies()
    with under_contention(0, lambda _: None):
        assert copies() == before
