"""Output that goes away ends no training. It ended one, or was called a bug in graphpipe."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_cases import CONFIG, TASK
from forked_programs import ROOT, forked_programs

pytestmark = [pytest.mark.timeout(240), pytest.mark.flaky(reruns=1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.py").write_text(TASK)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("end", ["2>&1 | head -n 1"])  # the others are in `bench user-errors`
def test_a_training_goes_on_without_its_output(folder: Path, end: str) -> None:
    # Not forked, because a program without streams cannot hand them to the server of forks.
    command = f"{sys.executable} -m graphpipe train tiny.toml --no-check {end}; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr
    assert json.loads((folder / "runs/tiny-1/metrics.json").read_text())["steps"] == 6


def test_another_verb_says_that_its_output_cannot_be_written(folder: Path) -> None:
    command = f"{forked_programs() / 'graphpipe'} plan mmt-small --cluster local:2 --batch 8 -o plan.json > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "graphpipe: error: the output cannot be written: No space left on device\n"
    assert (folder / "plan.json").exists()


def test_a_training_under_nohup_goes_on_after_the_terminal_is_closed(folder: Path) -> None:
    """Torch's agent replaced the ignored SIGHUP by a handler that stops all ranks."""
    (folder / "tiny.py").write_text(
        TASK.replace("    for _ in range(4):\n", "    for _ in range(4):\n        import time; time.sleep(0.5)\n")
    )
    command = [forked_programs() / "graphpipe", "train", "tiny.toml", "--no-check"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    log = folder / "runs/tiny-1/metrics.jsonl"
    end = time.monotonic() + 100
    while time.monotonic() < end and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGHUP)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert (folder / "runs/tiny-1/metrics.json").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("sys.exit(0)", "sys.exit(0) was called before the work of this rank was done"),
        pytest.param("os._exit(0)", "exited with code 0 before its work was done", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_ends_early_is_named_with_its_exit_code(folder: Path, how: str, message: str) -> None:
    """Another rank was named, which had only lost this one; or the run ended as if it were complete."""
    leaving = f"    import os, sys\n    if number == 1 and os.environ.get('RANK') == '1':\n        {how}\n"
    head = "def epoch(number, batch_size, seed):\n"
    (folder / "tiny.py").write_text(TASK.replace(head, head + leaving))
    command = [forked_programs() / "graphpipe", "train", "tiny.toml", "--no-check"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "rank 1" in done.stderr
    assert message in done.stderr


def test_an_epoch_that_yields_nothing_ends_the_run_with_a_sentence(folder: Path) -> None:
    """It was asked again and again, without an end."""
    head = "def epoch(number, batch_size, seed):\n"
    (folder / "tiny.py").write_text(TASK.replace(head, head + "    if number == 1: return\n"))
    command = [forked_programs() / "graphpipe", "train", "tiny.toml", "--no-check"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "epoch: yielded no mini-batch of 16 samples in epoch 1" in done.stderr
