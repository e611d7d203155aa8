"""Launch, training and the doctor work where nothing is that only Linux has: people try it on a laptop first.

`make test-portable` runs the whole tests of these rooms in this way.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cases import CONFIG, TASK

HIDING = Path(__file__).parent / "support" / "without_linux"
HIDDEN = """
import ctypes, os, select
from pathlib import Path
assert not [name for name in ("pidfd_open", "sched_getaffinity") if hasattr(os, name)] and not hasattr(select, "epoll")
assert not hasattr(ctypes.CDLL(None), "prctl") and hasattr(ctypes.CDLL(None), "printf")
assert not any(Path(each).exists() for each in ("/proc/cpuinfo", "/proc/self", "/dev/shm"))
try:
    open("/proc/cpuinfo")
except FileNotFoundError:
    print("hidden")
"""
BROKEN = """
import os

def broken(output, targets):
    if os.environ.get("RANK") == "1":
        raise KeyError("mine")
    return nn.functional.mse_loss(output, targets)

"""


def portable(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with everything hidden, also from the processes that it starts."""
    environment = os.environ | {"PYTHONPATH": str(HIDING)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is nothing to hide")
def test_everything_is_hidden(tmp_path: Path) -> None:
    done = portable("-c", HIDDEN, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("hidden\n", "")


@pytest.mark.slow
def test_ranks_train_and_a_failure_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TASK)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    done = portable("-m", "graphpipe", "train", "tiny.toml", "train.epochs=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FileNotFoundError" not in done.stderr
    (tmp_path / "tiny.py").write_text(BROKEN + TASK.replace("loss_fn=nn.functional.mse_loss", "loss_fn=broken"))
    done = portable("-m", "graphpipe", "train", "tiny.toml", "train.epochs=1", folder=tmp_path)
    assert done.returncode == 4, done.stderr
    assert re.search(
        r"error: rank 1 .*: KeyError: 'mine' \(tiny\.py, line 6, in broken\)\. The other ranks", done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_doctor_examines_the_machine_and_its_ranks(tmp_path: Path) -> None:
    done = portable("-m", "graphpipe", "doctor", "--ranks", "2", folder=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    assert "no /dev/shm on this system" in done.stdout
    assert "2 over gloo" in done.stdout
