"""Runs a function in several processes, one per rank, and brings back what each returned or raised."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Outcome:
    """What became of a rank."""

    value: Any
    error: str
    """Type and text of what it raised."""
    seconds: float
    exitcode: int | None


def run_ranks(
    work: Callable[..., Any], size: int, folder: Path, *arguments: Any, seconds: float = 40.0
) -> list[Outcome]:
    """Call `work(*arguments)` in `size` processes that form a gloo world; `work` must be importable by them."""
    context = multiprocessing.get_context("forkserver")
    # The first optimizer of a process imports torch._dynamo, which takes seconds.
    context.set_forkserver_preload(["torch", "torch._dynamo", "graphpipe.run"])
    folder.mkdir(exist_ok=True)
    processes = [context.Process(target=_rank, args=(rank, size, folder, work, arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
        process.join()
    assert not stuck, f"{len(stuck)} ranks were still running after {seconds} s"
    return [_outcome(folder / f"{rank}.pt", process.exitcode) for rank, process in enumerate(processes)]


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what every rank returned; all must have succeeded."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.exitcode == 0, f"rank {rank} ended with {outcome.exitcode}: {outcome.error}"
        assert not outcome.error, f"rank {rank}: {outcome.error}"
    return [outcome.value for outcome in outcomes]


def _outcome(path: Path, exitcode: int | None) -> Outcome:
    if not path.exists():
        return Outcome(None, "", 0.0, exitcode)
    return Outcome(**torch.load(path, weights_only=True), exitcode=exitcode)


def _rank(rank: int, size: int, folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
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
    os._exit(0)  # what a rank leaves open must not delay the others' end
