"""`graphpipe train` is killed, for example by a batch system or a shortage of memory: its ranks end with it."""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_cases import Run
from processes import descendants, still_running

from graphpipe.run.checkpoint.folder import list_checkpoints, newest_valid

CHECKPOINTS = Path("runs/tiny-1/checkpoints")
WORDS = ("train.checkpoint_every=2", "train.keep=1000000")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_rank_outlives_its_launcher_or_writes_beside_the_next_one(run: Run, config: Path) -> None:
    elastic = ("--elastic",)  # An elastic run has a supervisor besides; `tests/launch` kills plain launchers.
    with training(config, *WORDS, *elastic) as launcher:
        before = newest_valid(CHECKPOINTS).path.name
        second = run("train", config, *WORDS, *elastic, "--resume", "runs/tiny-1", "train.steps=1000000")
        assert (second.code, second.err.count("error: ")) == (2, 1), second.err
        assert f"runs/tiny-1: another training writes to this run (process {launcher.pid} on " in second.err
        assert run("export", "runs/tiny-1", "-o", "weights.safetensors").code == 0
        ranks = descendants(launcher.pid)
        assert len(ranks) == 2
        end = time.monotonic() + 150
        while newest_valid(CHECKPOINTS).path.name == before and time.monotonic() < end:
            time.sleep(0.1)
        assert newest_valid(CHECKPOINTS).path.name > before
    assert still_running(ranks, 5) == []
    # The folder is free again: this one gets as far as to what it finds there.
    third = run("train", config, *WORDS, *elastic, "--resume", "runs/tiny-1", "train.steps=1")
    assert third.code == 2
    assert " of 1 steps are done. Choose more train.steps" in third.err


@contextmanager
def training(*words: object) -> Generator[subprocess.Popen[bytes]]:
    """Start a training without end, wait for its first checkpoints, and kill it after the block."""
    command = [sys.executable, "-m", "graphpipe", "train", *map(str, words), "train.steps=1000000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        try:
            end = time.monotonic() + 120
            while len(list_checkpoints(CHECKPOINTS)) < 2:
                assert launcher.poll() is None
                assert time.monotonic() < end, "no checkpoint was made"
                time.sleep(0.1)
            yield launcher
        finally:
            launcher.kill()
