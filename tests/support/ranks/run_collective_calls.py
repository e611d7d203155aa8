"""Ranks that work while others wait: importable functions of plain values."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from run_checkpoints import resume

from graphpipe.errors import PeerStalled
from graphpipe.run.checkpoint import checkpoints as checkpoint
from graphpipe.run.comm.collective_calls import patiently
from graphpipe.run.comm.world import join

LIMIT = 2.0


def work_for(seconds: float, end: str = "") -> list[Any]:
    """Work on rank 0, longer than the limit, and let the others wait; it may come to an end of its own kind."""
    world = join("cpu", LIMIT)
    pids = world.exchange(os.getpid())

    def work() -> int:
        if world.rank == 0:
            time.sleep(seconds)
            if end:
                os.kill(os.getpid(), signal.Signals[end])
        return world.rank

    try:
        return patiently(world, work)
    except PeerStalled:
        os.kill(pids[0], signal.SIGKILL)  # as a launcher does with a rank that is stopped
        raise


def resume_slowly(folder: str, seconds: float) -> dict[str, Any]:
    """Go on from a checkpoint whose files take rank 0 longer to check than a silent rank is waited for."""
    settle = checkpoint.settle

    def slow(path: Path) -> Path:
        assert dist.get_rank() == 0
        time.sleep(seconds)
        return settle(path)

    checkpoint.settle = slow
    return resume("shared", folder, {"timeout_seconds": LIMIT})
