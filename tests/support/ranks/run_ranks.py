"""Runs a function in several processes, one per rank, and brings back what each returned or raised."""

import importlib
import inspect
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

if __name__ == "__main__":
    support = Path(__file__).parents[1]
    folders = ("", "models", "models/sharing", "models/splits", "programs", "front_ends", "ranks/memory", "accelerator")
    sys.path[:0] = [str((support / folder).resolve()) for folder in (*folders, "../..")]

from forked_programs import forked_programs


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rank."""

    value: Any
    error: str
    """Type and text of what it raised."""
    seconds: float
    exitcode: int | None


def run_ranks(
    work: Callable[..., Any], size: int, folder: Path, *arguments: Any, seconds: float = 100.0
) -> list[Outcome]:
    """Call `work(*arguments)` in `size` processes that form a gloo world; `work` must be importable by them."""
    folder.mkdir(exist_ok=True)
    home = str(Path(inspect.getfile(work)).parent)
    (folder / "work").write_bytes(pickle.dumps((home, work.__module__, work.__qualname__, arguments)))
    command = [forked_programs() / "python", __file__, folder, str(size)]
    processes = [subprocess.Popen([*command, str(rank)]) for rank in range(size)]
    deadline = time.monotonic() + seconds
    stuck = 0
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            stuck += 1
            process.kill()
            process.wait()
    assert not stuck, f"{stuck} ranks were still running after {seconds} s"
    return [_outcome(folder / f"{rank}.pt", process.returncode) for rank, process in enumerate(processes)]


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what every rank returned; all must have succeeded."""
    failed = {
        f"rank {rank}, which ended with {outcome.exitcode}": outcome.error
        for rank, outcome in enumerate(outcomes)
        if outcome.exitcode != 0 or outcome.error
    }
    assert not failed  # all of them, because most only say that they lost another
    return [outcome.value for outcome in outcomes]


def _outcome(path: Path, exitcode: int | None) -> Outcome:
    if not path.exists():
        return Outcome(None, "", 0.0, exitcode)
    return Outcome(**torch.load(path, weights_only=True), exitcode=exitcode)


def _rank(folder: Path, size: int, rank: int) -> None:
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    home, module, name, arguments = pickle.loads((folder / "work").read_bytes())
    sys.path.append(home)
    work = getattr(importlib.import_module(module), name)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    start = time.monotonic()
    value, error = None, ""
    try:
        value = work(*arguments)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
    torch.save({"value": value, "error": error, "seconds": time.monotonic() - start}, folder / f"{rank}.pt")
    os._exit(0)  # open resources of a rank must not delay the end of the others


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
