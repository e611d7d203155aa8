"""`python -m bench user-errors`: mistakes of a user on one rank, and lost output, in real trainings on two processes.

A training whose ranks have other data or weights must end with a sentence, and so must one whose rank leaves early or
whose epoch is empty. One whose output goes away must train to its end, to the same losses. None may be silent or hang.
Each draw is appended to `bench/results/user-errors.jsonl`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from bench.record import append_row, read_rows, save
from bench.tables import markdown

NAME = "user-errors"
STEPS, EVERY, SECONDS = 10, 4, 120
TASK = """
import os, sys
import torch
from torch import nn
import graphpipe as gp

RANK = os.environ.get("RANK")
KIND, STEP, SAMPLE = "@KIND@", @STEP@, @SAMPLE@
HERE = RANK == "@RANK@"


def leave():
    os._exit(0) if KIND == "_exit" else sys.exit(0 if KIND == "exit 0" else 3)


def epoch(number, batch_size, seed):
    if KIND == "empty epoch" and number == 1 and (HERE or @EVERYWHERE@):
        return
    draw = torch.Generator().manual_seed(1000 * seed + number)
    for batch in range(4 - (KIND == "shorter epoch" and HERE and number == 0)):
        step = 4 * number + batch
        x = torch.randn(batch_size, 4, generator=draw)
        late = HERE and step >= STEP
        if KIND == "other values" and late:
            x = x + 1
        if KIND == "one sample" and late:
            x[SAMPLE] += 1
        if KIND == "shifted" and late:
            x = torch.randn(batch_size, 4, generator=draw)
        if late and KIND in ("exit 0", "exit 3", "_exit"):
            leave()
        if KIND == "replica" and HERE and step == STEP:
            with torch.no_grad():
                MODULE[0].weight[1, 2] += 0.1
        yield x, (x.sum(1) > 0).long()


def task():
    global MODULE
    if KIND == "initial weights" and HERE:
        torch.manual_seed(77)
    MODULE = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return gp.Task(module=MODULE, example_inputs=torch.randn(2, 4), loss_fn=nn.functional.cross_entropy, epoch=epoch)
"""
CONFIG = """
task = "mistake.py:task"
cluster = "local:2"
[plan]
costs = "estimate"
stages = "stages.json"
[train]
batch_size = 8
steps = @STEPS@
checkpoint_every = @EVERY@
[run]
timeout_seconds = 20
"""
DATA = ("other values", "one sample", "shifted", "shorter epoch")
ENDS = ("exit 0", "exit 3", "_exit")
OUTPUT = {"head": "2>&1 | head -n 2", "full": "> /dev/full 2>&1", "closed": ">&- 2>&-", "half": "2> /dev/full"}
KINDS = (*DATA, "initial weights", "replica", *ENDS, "empty epoch", *OUTPUT)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What goes wrong in one run."""

    kind: str
    rank: int
    step: int
    """From 0."""
    sample: int
    replicas: bool
    everywhere: bool
    resumed: bool
    """Whether it happens only after a resume."""

    @staticmethod
    def draw(seed: int) -> "Mistake":
        """Return the mistake of a seed."""
        draw = random.Random(seed)
        kind = draw.choice(KINDS)
        return Mistake(
            kind=kind,
            rank=draw.randrange(2),
            step=draw.randrange(1, 4) if kind == "replica" else draw.randrange(6),
            sample=draw.randrange(8),
            replicas=kind == "replica" or draw.random() < 0.4,
            everywhere=draw.random() < 0.5,
            resumed=kind in DATA[:3] and draw.random() < 0.3,
        )


def run(mistake: Mistake, folder: Path) -> str:
    """Return what is wrong with the run of a mistake; empty if nothing is."""
    _write(mistake, folder, mistake.kind if not mistake.resumed else "")
    if mistake.resumed:
        code, text, _ = _train(folder, "train.steps=4")
        if code:
            return f"the run before ended with {code}: {text[-300:]}"
        _write(mistake, folder, mistake.kind)
    more = f"--resume {folder}/runs/mistake-1" if mistake.resumed else ""
    code, text, seconds = _train(folder, f"{more} {OUTPUT.get(mistake.kind, '')}")
    if code is None:
        return f"hung for {seconds:.0f} s"
    finished = (folder / "runs/mistake-1/metrics.json").exists()
    if mistake.kind in OUTPUT:
        return "" if code == 0 and finished else f"ended with {code}: {text[-300:]}"
    if code == 0:
        return "silent"
    errors = [line for line in text.splitlines() if "error:" in line]
    if len(errors) != 1 or "bug in graphpipe" in text or "Traceback" in text:
        return f"no single sentence: {text[-500:]}"
    wanted = {
        "exit 3": "sys.exit(3)",
        "exit 0": "sys.exit(0)",
        "_exit": "code 0",
        "empty epoch": "yielded no mini-batch",
    }
    wanted |= {"initial weights": "initial weights", "replica": "replicas with different weights"}
    wanted |= dict.fromkeys(DATA, "was given")
    return "" if wanted[mistake.kind] in errors[0] else f"another sentence: {errors[0]}"


def _write(mistake: Mistake, folder: Path, kind: str) -> None:
    values = {
        "KIND": kind,
        "STEP": max(mistake.step, 4) if mistake.resumed else mistake.step,
        "SAMPLE": mistake.sample,
        "RANK": mistake.rank,
        "EVERYWHERE": mistake.everywhere,
        "STEPS": STEPS,
        "EVERY": EVERY,
    }
    for name, text in (("mistake.py", TASK), ("mistake.toml", CONFIG)):
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        (folder / name).write_text(text)
    stages = [{"ops": ["*"], "devices": [0, 1], "micro_batch": 4}]
    if not mistake.replicas:
        stages = [{"ops": [ops], "devices": [n], "micro_batch": 4} for n, ops in enumerate(("0*", "2*"))]
    (folder / "stages.json").write_text(json.dumps({"graphpipe": "stages", "schema_version": 1, "stages": stages}))


def _train(folder: Path, end: str) -> tuple[int | None, str, float]:
    command = f"{sys.executable} -m graphpipe train mistake.toml --no-check {end}; exit ${{PIPESTATUS[0]}}"
    start = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        try:
            text, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, "", time.monotonic() - start
    return process.returncode, text, time.monotonic() - start


def main(
    *,
    count: Annotated[int, range(1, 10**6)] = 200,
    most: Annotated[int, range(1, 10**6)] = 10**5,
    redo: bool = False,
) -> None:
    """Make the mistakes that are missing, and write the summary. A call goes on where the last one ended.

    Args:
        count: draws in all, with the seeds from 0.
        most: draws of this call.
        redo: make those again that went wrong.

    Raises:
        SystemExit: a run went wrong.
    """
    rows = {row["seed"]: row for row in read_rows(NAME)}
    missing = [seed for seed in range(count) if seed not in rows or (redo and rows[seed]["problem"])]
    for seed in missing[:most]:
        mistake = Mistake.draw(seed)
        with tempfile.TemporaryDirectory() as folder:
            rows[seed] = {"seed": seed, **asdict(mistake), "problem": run(mistake, Path(folder))}
        append_row(NAME, rows[seed])
        if rows[seed]["problem"]:
            print(f"seed {seed}: {mistake}: {rows[seed]['problem']}", flush=True)
    summarise([rows[seed] for seed in sorted(rows)])
    if any(row["problem"] for row in rows.values()):
        sys.exit(1)


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Write the JSON and the table, and print the totals."""
    save(NAME, rows)
    headers = ["mistake", "draws", "wrong", "of these silent", "of these hung"]
    table = [
        [kind, *_counts([row for row in rows if row["kind"] == kind])] for kind in sorted({r["kind"] for r in rows})
    ]
    total = ["all", *_counts(rows)]
    caption = (
        f"{len(rows)} trainings on two processes with a mistake on one rank, or with lost output "
        "(`python -m bench user-errors`)."
    )
    markdown(NAME, "Mistakes of users", caption, headers, [*table, total])
    print(dict(zip(headers, total, strict=True)))


def _counts(rows: Sequence[dict[str, Any]]) -> list[int]:
    problems = [row["problem"] for row in rows if row["problem"]]
    return [
        len(rows),
        len(problems),
        problems.count("silent"),
        sum("hang" in each or "hung" in each for each in problems),
    ]
