"""The simulator against the real runtime with emulated compute: mmt's plans for 16 and 32 devices (target 5 %).

As many processes and all their messages, on this machine; tasks sleep, each 10 ms or longer, so that no rank waits for
a core. Measured is the step of median length of 5, after one.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.case import summit
from bench.record import save
from bench.tables import markdown
from graphpipe.cli.main import main as graphpipe
from graphpipe.model.zoo import zoo

TARGET = 0.05
DEVICES = (16, 32)
SAMPLES = 4
"""Samples of a mini-batch per device."""


def rehearse(devices: int, folder: Path) -> dict[str, Any]:
    """Return the result of a rehearsal of mmt on this many devices."""
    module, inputs = zoo("mmt")
    graph, cluster = gp.capture(module, inputs), summit(devices)
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=SAMPLES * devices)
    plan.save(folder / "plan.json")
    summary = folder / "summary.json"
    code = graphpipe(["rehearse", str(folder / "plan.json"), "--summary", str(summary)])
    assert code == 0, f"graphpipe rehearse ended with {code}"
    body = json.loads(summary.read_text())
    return {"model": "mmt", "devices": devices, "stages": len(plan.stages)} | body


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(rehearse(devices, Path(folder)))
    lines = [
        [
            row["ranks"],
            row["stages"],
            f"{row['step_seconds_predicted']:.3f}",
            f"{row['step_seconds_measured']:.3f}",
            f"{row['difference']:+.1%}",
        ]
        for row in rows
    ]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    markdown("rehearsal", "Rehearsals", caption, ["ranks", "stages", "predicted s", "measured s", "difference"], lines)
    missed = [row["ranks"] for row in rows if abs(row["difference"]) > TARGET]
    print(f"saved {save('rehearsal', rows, target=TARGET, missed=missed, load=os.getloadavg())}")
