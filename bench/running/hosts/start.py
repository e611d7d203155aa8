"""Processor time of a rank of `graphpipe train` until it is ready for its first step (target 4 s).

Processor seconds of the rank's whole process, from its start until it asks for its first mini-batch. The time in which
the user's task is imported and built is shown apart. The median of all ranks of three runs on this machine.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import save
from bench.running.hosts.start_task import NOTES
from bench.tables import markdown

TARGET_SECONDS = 4.0
RUNS, RANKS = 3, 2
TASKS = ("transformer", "digits")
CONFIG = """
task = "{folder}/start_task.py:{task}"
cluster = "local:{ranks}"
[plan]
costs = "estimate"
[train]
batch_size = 64
steps = 1
[optimizer]
lr = 0.001
"""


def start(task: str, folder: Path) -> list[dict[str, float]]:
    """Train one step, and return the notes of every rank."""
    (folder / "start.toml").write_text(CONFIG.format(folder=Path(__file__).parent, task=task, ranks=RANKS))
    subprocess.run(
        [sys.executable, "-m", "graphpipe", "train", "start.toml"],
        cwd=folder,
        env=os.environ | {NOTES: str(folder)},
        check=True,
        capture_output=True,
    )
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]


def measure(task: str) -> dict[str, Any]:
    """Return the medians of a task."""
    notes: list[dict[str, float]] = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            notes += start(task, Path(folder))
    ready = median(note["ready_seconds"] for note in notes)
    own = median(note["own_seconds"] for note in notes)
    return {"task": task, "ready_seconds": ready, "task_seconds": own, "rest_seconds": ready - own, "notes": notes}


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows = [measure(task) for task in TASKS]
    lines = [
        [row["task"], *(f"{row[key]:.2f}" for key in ("ready_seconds", "task_seconds", "rest_seconds"))] for row in rows
    ]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    markdown("start", "Start of a rank", caption, ["task", "ready after s", "of it the task s", "the rest s"], lines)
    for row in rows:
        rest = f"{row['rest_seconds']:.2f} beside its task"
        print(f"{row['task']}: ready after {row['ready_seconds']:.2f} processor seconds, {rest}")
    missed = [row["task"] for row in rows if row["rest_seconds"] > TARGET_SECONDS]
    print(f"saved {save('start', rows, target=TARGET_SECONDS, missed=missed, load=os.getloadavg())}")
