"""Time lost when a rank is killed: rerouting its samples against a restart from a checkpoint, in turns.

    python -m bench fault-rerouting [--rounds N]

Rank 1 of four is killed in the middle of a step, three steps after a checkpoint. Both stages have two replicas.
Processes really start, as with `graphpipe train` in a shell.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from bench.record import save

TASK = Path(__file__).parent / "fault_task.py"
ROUNDS, STEPS, EVERY, STRUCK = 7, 12, 5, 9
STAGES = [
    {"ops": ["a*", "b*"], "devices": [0, 1], "micro_batch": 4},
    {"ops": ["sum*"], "devices": [2, 3], "micro_batch": 4},
]
CONFIG = f"""
task = "{TASK}:task"
cluster = "local:4"
[plan]
costs = "estimate"
stages = "stages.json"
[train]
batch_size = 16
steps = {STEPS}
checkpoint_every = {EVERY}
[run]
name = "run"
readmit_seconds = 0
elastic = true
"""


def main(*, rounds: Annotated[int, range(1, 1000)] = ROUNDS) -> None:
    """Measure in turns, and write the medians.

    Args:
        rounds: runs of each kind.
    """
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for reroute in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory(prefix="graphpipe-rerouting") as folder:
                rows.append({"reroute": reroute, **_measure(Path(folder), reroute=reroute)})
                print(rows[-1], flush=True)
    names = ("stood_still_seconds", "again_seconds", "steps_repeated")
    medians = {
        "rerouted" if reroute else "restarted": {
            name: median(row[name] for row in rows if row["reroute"] is reroute) for name in names
        }
        for reroute in (True, False)
    }
    print(json.dumps(medians, indent=1))
    save("fault_rerouting", rows, medians=medians)


def _measure(folder: Path, *, reroute: bool) -> dict[str, float]:
    """Run a training, and return how long it stood still, and how long until the step was done again."""
    (folder / "run.toml").write_text(CONFIG)
    (folder / "stages.json").write_text(json.dumps({"graphpipe": "stages", "schema_version": 1, "stages": STAGES}))
    words = ["train", "run.toml", f"run.reroute={str(reroute).lower()}", "--fault", f"kill@rank1:step{STRUCK}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "graphpipe", *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    run = folder / "runs" / "run-1"
    (recovery,) = (json.loads(line) for line in (run / "recoveries.jsonl").read_text().splitlines())
    assert recovery["rerouted"] is reroute
    struck = json.loads((run / "faults.jsonl").read_text())["time"]
    events = [json.loads(line) for line in (run / "events" / "rank-0.jsonl").read_text().splitlines()]
    again = min(each["unix_seconds"] for each in events if each["event"] == "step" and each["step"] == STRUCK)
    return {
        "stood_still_seconds": round(recovery["seconds"], 3),
        "again_seconds": round(again - struck, 3),
        "steps_repeated": recovery["steps_lost"],
    }
