"""Memory of a rank, as a multiple of its share: weights, gradients and optimizer state of its own stages.

A chain of 16 layers with 1 GiB of weights, in 2, 4 and 8 equal stages, one per rank, fp32. The base is what a process
holds before its pipeline is built, without files. `at start` is the peak until the second step, `steady` what is held
between two steps, and `while saving` the peak of the last step and of a checkpoint. A function builds the model, so
that no process has all of it. A model with data is whole on every rank until the pipeline is built. The largest value
of all ranks, each measured once.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.record import ROOT, append_row, read_rows, save
from bench.running.memory.rank_memory_rank import COPIES, LAYERS, NOTES, STEPS, WIDE, plan_of
from bench.tables import markdown

NAME = "rank-memory"
RANKS, WAYS = (2, 4, 8), ("gp.Pipeline", "graphpipe train", "gp.Pipeline, a model with data")
LIMITS = {"steady": 1.1, "start": 1.5, "saving": 1.5}
"""The most of a share that a phase may hold."""
CONFIG = """
task = "{module}:task"
cluster = "local:{ranks}"
[plan]
costs = "estimate"
[train]
batch_size = 8
steps = {steps}
checkpoint_every = {steps}
check = false
[optimizer]
name = "{optimizer}"
lr = 0.001
"""


def measure(way: str, ranks: int, optimizer: str) -> dict[str, Any]:
    """Return what the fullest rank holds in each phase, as a multiple of its share."""
    share = COPIES[optimizer] * 4 * LAYERS // ranks * (WIDE * WIDE + WIDE)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan_of(ranks).save(folder / "plan.json")
        job = {"plan": str(folder / "plan.json"), "optimizer": optimizer, "data": "data" in way}
        (folder / "job").write_text(json.dumps(job))
        ran = subprocess.run(
            _command(way, ranks, optimizer, folder),
            cwd=folder,
            env=os.environ | {NOTES: place, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            raise RuntimeError(f"{way} on {ranks} ranks: {ran.stderr[:4000]}")
        notes = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    held = {phase: max(note[phase] for note in notes) / share for phase in LIMITS}
    return {"way": way, "ranks": ranks, "optimizer": optimizer, "share_bytes": share, "held": held, "notes": notes}


def _command(way: str, ranks: int, optimizer: str, folder: Path) -> list[str]:
    module = "bench.running.memory.rank_memory_rank"
    if way != "graphpipe train":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, "--nproc-per-node", str(ranks), "-m", module]
    config = CONFIG.format(module=module, ranks=ranks, steps=STEPS, optimizer=optimizer)
    (folder / "memory.toml").write_text(config)
    return [sys.executable, "-m", "graphpipe", "train", "memory.toml", "--plan", "plan.json"]


def _key(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["way"], row["ranks"], row["optimizer"]


def missed(row: dict[str, Any]) -> list[str]:
    """Return the phases in which a rank held more than the limit. With data, only the steady one has a limit."""
    phases = ("steady",) if "data" in row["way"] else LIMITS
    return [phase for phase in phases if row["held"][phase] > LIMITS[phase]]


def main(*, again: bool = False) -> None:
    """Measure what is missing, write JSON and table. A second call goes on where the first ended.

    Args:
        again: measure everything again.
    """
    known = {} if again else {_key(row): row for row in read_rows(NAME)}
    cases = [(way, ranks, optimizer) for optimizer in COPIES for ranks in RANKS for way in WAYS]
    for case in cases:
        if case not in known:
            known[case] = measure(*case)
            append_row(NAME, known[case])
            print(*case, {name: round(held, 2) for name, held in known[case]["held"].items()}, flush=True)
            summarise([known[case] for case in cases if case in known])
    summarise([known[case] for case in cases])


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Write JSON and table of what was measured so far."""
    lines = [
        [
            row["way"],
            row["ranks"],
            row["optimizer"],
            f"{row['share_bytes'] / 2**20:.0f}",
            *(f"{row['held'][phase]:.2f}" for phase in LIMITS),
        ]
        for row in sorted(rows, key=lambda row: WAYS.index(row["way"]))
    ]
    header = ["trained with", "ranks", "optimizer", "share MiB", "steady", "at start", "while saving"]
    markdown(NAME, "Memory of a rank", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    failed = [f"{row['way']} on {row['ranks']}: {phase}" for row in rows for phase in missed(row)]
    save(NAME, rows, limits=LIMITS, missed=failed)
