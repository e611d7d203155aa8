"""Random plans and faults on emulated GPUs: ranks that communicate by a backend which keeps NCCL's rules.

    python -m bench emulated [--count N] [--seed S]

Each draw cuts a model of four submodules for 2 to 6 ranks at random, with replicas, shared devices, 1F1B, kFkB or
GPipe, and lazy or eager communicators. Without a fault, losses must be those of one process, and no rule may be
broken. With a fault, the rank that computes the loss raises, dies or hangs in its second step. The others must end
soon, and one of them must name that rank. Each draw is appended to `bench/results/emulated.jsonl`. A second call goes
on where the first ended. Nothing of it ran on a GPU.
"""

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from math import isclose
from pathlib import Path
from typing import Annotated, Any

from bench.record import ROOT, append_row, read_rows

SUPPORT = ROOT / "tests" / "support"
_FOLDERS = ("", "models", "models/splits", "planning", "programs", "front_ends", "ranks", "ranks/memory", "accelerator")
OPERATORS = ("stem", "left", "right", "head")
"""In an order in which any two next to each other can be one stage."""
SCHEDULES = ("1f1b", "gpipe", "kfkb")
FAULTS = ("", "", "", "raise", "kill", "hang")
LIMITS = {"raise": 15.0, "kill": 15.0, "hang": 4.0}
"""Seconds after which a rank that does not answer is given up."""
_SOON_SECONDS = 40.0
_SIZES = (2, 3, 4, 6, 12)
"""The sizes of micro-batches that divide the mini-batch."""

Line = tuple[list[str], list[int], int]
"""The operators, devices and micro-batch of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One plan, and what goes wrong."""

    number: int
    ranks: int
    lines: list[Line]
    schedule: str
    eager: bool
    fault: str
    """Empty for none."""


def draw(seed: int, number: int) -> Draw:
    """Return the draw of a number, always the same."""
    rng = random.Random(f"{seed} {number}")
    ranks, fault = rng.randint(2, 6), rng.choice(FAULTS)
    cuts = sorted(rng.sample(range(1, len(OPERATORS)), rng.randint(1, len(OPERATORS) - 1)))
    groups = [OPERATORS[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(OPERATORS)], strict=True)]
    lines: list[Line] = []
    free = list(range(ranks))
    for position, group in enumerate(groups):
        last = position == len(groups) - 1
        degree = 1 if last and fault else rng.choice([1, 1, 2, 3])
        apart = len(free) >= degree and rng.random() < 0.8
        devices = free[:degree] if apart else rng.sample(range(ranks), min(degree, ranks))
        free = [device for device in free if device not in devices]
        size = rng.choice([size for size in _SIZES if not size % len(devices)])
        lines.append((list(group), devices, size))
    used = {device: place for place, device in enumerate(sorted({device for _, on, _ in lines for device in on}))}
    lines = [(ops, [used[device] for device in on], size) for ops, on, size in lines]
    schedule = rng.choice(SCHEDULES)
    return Draw(number=number, ranks=len(used), lines=lines, schedule=schedule, eager=rng.random() < 0.5, fault=fault)


def main(*, count: Annotated[int, range(1, 10**6)] = 200, seed: int = 0) -> None:
    """Carry out the draws that are missing, and say how many had a problem.

    Args:
        count: draws that there are at the end.
        seed: of the draws.
    """
    rows = {row["number"]: row for row in read_rows("emulated") if row["seed"] == seed}
    with tempfile.TemporaryDirectory(prefix="graphpipe-emulated-") as folder:
        for number in range(count):
            if number not in rows:
                drawn = draw(seed, number)
                rows[number] = asdict(drawn) | {"seed": seed, "problem": carry_out(drawn, Path(folder))}
                append_row("emulated", rows[number])
                print(number, drawn.schedule, drawn.fault or "no fault", rows[number]["problem"] or "fine", flush=True)
    print(f"{sum(bool(row['problem']) for row in rows.values())} of {len(rows)} draws had a problem")


def carry_out(drawn: Draw, folder: Path) -> str:
    """Run a draw, and return what was wrong; empty if nothing was.

    Args:
        drawn: the plan and the fault.
        folder: for the ranks' results.
    """
    paths = [str(SUPPORT / name) for name in _FOLDERS]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    run_ranks = import_module("run_ranks").run_ranks
    emulated = import_module("run_emulated")
    try:
        return (_failing if drawn.fault else _training)(drawn, folder / str(drawn.number), run_ranks, emulated)
    except AssertionError as error:
        return str(error)


def _training(drawn: Draw, folder: Path, run_ranks: Callable[..., Any], emulated: Any) -> str:
    options = {"schedule": drawn.schedule}
    alone = emulated.train_alone(drawn.lines, options)
    for rank, outcome in enumerate(
        run_ranks(emulated.train_drawn, drawn.ranks, folder, drawn.lines, options, drawn.eager, drawn.number)
    ):
        if outcome.error or outcome.exitcode:
            return f"rank {rank} ended with {outcome.exitcode}: {outcome.error}"
        if outcome.value["broken"]:
            return f"rank {rank}: {outcome.value['broken'][0]}"
        pairs = zip(outcome.value["losses"], alone["losses"], strict=True)
        if not all(isclose(own, theirs, rel_tol=1e-4) for own, theirs in pairs):
            return f"rank {rank}: losses {outcome.value['losses']}, alone {alone['losses']}"
    return ""


def _failing(drawn: Draw, folder: Path, run_ranks: Callable[..., Any], emulated: Any) -> str:
    (struck,) = drawn.lines[-1][1]
    found = run_ranks(
        emulated.fail_drawn, drawn.ranks, folder, drawn.lines, drawn.fault, LIMITS[drawn.fault], seconds=120.0
    )
    others = [outcome for rank, outcome in enumerate(found) if rank != struck]
    if not all(outcome.error.startswith("Peer") for outcome in others):
        return f"not every other rank says that a peer is lost: {[outcome.error for outcome in found]}"
    if not any(f"rank {struck} " in outcome.error for outcome in others):
        return f"rank {struck} is not named: {[outcome.error for outcome in found]}"
    late = max(outcome.seconds for outcome in others)
    return f"the others ended after {late:.0f} s" if late > _SOON_SECONDS else ""
