"""Memory of `graphpipe infer` over 10,000 requests: it must stay flat.

10,000 requests of 1 to 5 samples for two towers (1.6 million parameters), on 2 ranks as a graph and 4 as a chain: the
resident memory of a rank when a tenth of the answers was there, when half was there, and the most from the first answer
to the end. Every answer is compared with the model in one process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.record import save
from bench.running.requests.request_model import REQUESTS, model, requests
from bench.tables import markdown

PLANNERS = {2: "graphpipe", 4: "edgepipe"}
"""By the number of ranks. On a machine with two cores, a graph leaves the third and fourth rank unused."""
MOST_GROWTH = 1.1
POLL_SECONDS = 0.2
MiB = 2.0**20


def main() -> None:
    """Run the benchmark, write JSON and a table; fail if an answer is wrong or memory grows by more than a tenth."""
    samples, expected = answers()
    rows = [measured(ranks, samples, expected) for ranks in PLANNERS]
    header = ["ranks", "seconds", *(f"{name}, MiB a rank" for name in ("at 10 %", "at 50 %", "most"))]
    lines = [
        [row["ranks"], f"{row['seconds']:.0f}"] + [f"{max(row[key]):.1f}" for key in ("tenth", "half", "most")]
        for row in rows
    ]
    caption = (__doc__ or "").partition("\n\n")[2].strip() + " The table shows the rank with the largest memory."
    markdown("requests", "Memory over 10,000 requests", caption, header, lines)
    print(f"saved {save('requests', rows, requests=REQUESTS, samples=samples, load=os.getloadavg())}")
    assert all(row["growth"] <= MOST_GROWTH for row in rows)


def answers() -> tuple[int, Tensor]:
    """Return the number of samples, and the answers of the model in one process."""
    module = model()[0].eval()
    with torch.no_grad():
        outputs = torch.cat([module(**request) for request in requests()])
    return len(outputs), outputs


def measured(ranks: int, samples: int, expected: Tensor) -> dict[str, Any]:
    """Answer all requests, and return a row."""
    here = Path(__file__).with_name("request_model.py")
    command = [sys.executable, "-m", "graphpipe", "infer", f"{here}:model", "--data", f"{here}:requests"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.safetensors"
        command += ["--cluster", f"local:{ranks}", "--planner", PLANNERS[ranks], "--batch", "32"]
        command += ["--json", "-o", str(out)]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as launcher:
            seen = watched(launcher, out.with_name(out.name + ".partial"))
            assert launcher.stdout is not None
            said = json.loads(launcher.stdout.read())
        seconds = time.monotonic() - began
        assert launcher.returncode == 0, said
        found = load_file(out)["output"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    row = curve(seen) | {"ranks": ranks, "seconds": seconds}
    print(json.dumps(row), flush=True)
    return row


def watched(launcher: subprocess.Popen[str], journal: Path) -> list[tuple[int, dict[int, float]]]:
    """Return the journal's bytes and the ranks' resident MiB by process id, again and again until the end."""
    seen: list[tuple[int, dict[int, float]]] = []
    process = psutil.Process(launcher.pid)
    while launcher.poll() is None:
        memory: dict[int, float] = {}
        for child in process.children():
            try:
                memory[child.pid] = child.memory_info().rss / MiB
            except psutil.NoSuchProcess:
                continue
        if journal.exists():
            seen.append((journal.stat().st_size, memory))
        time.sleep(POLL_SECONDS)
    return seen


def curve(seen: list[tuple[int, dict[int, float]]]) -> dict[str, Any]:
    """Return the memory of every rank at a tenth and half of the answers, the most, and the growth from the tenth."""
    last = max(size for size, _ in seen)
    counting = [(size, memory) for size, memory in seen if memory and size < last]
    assert len(counting) > 10, "the answers came too quickly to see the memory"
    tenth = next(at for at, (size, _) in enumerate(counting) if size >= 0.1 * last)
    half = next(memory for size, memory in counting if size >= 0.5 * last)
    pids = sorted(counting[tenth][1])
    most = {pid: max(memory.get(pid, 0.0) for _, memory in seen) for pid in pids}
    return {
        "tenth": [counting[tenth][1][pid] for pid in pids],
        "half": [half[pid] for pid in pids],
        "most": [most[pid] for pid in pids],
        "growth": max(most[pid] / counting[tenth][1][pid] for pid in pids),
    }
