"""Ranks that work while others wait: importable functions of plain values."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from run_checkpoints import resume

from graphpipe.errors import PeerStalled
from graphpipe.run.checkpoint import checkpoints
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.comm.world import join

LIMIT = 2.0


def compute_past_limit(seconds: float, end: str = "") -> list[Any]:
    """Work on rank 0, longer than the limit, while the others wait; rank 0 may be killed or stopped."""
    world = join("cpu", LIMIT)
    pids = world.exchange(os.getpid())

    def work() -> int:
        if world.rank == 0:
            time.sleep(seconds)
            if end:
                os.kill(os.getpid(), signal.Signals[end])
        return world.rank

    try:
        return wait_for_ranks(world, work)
    except PeerStalled:
        os.kill(pids[0], signal.SIGKILL)  # as a launcher does with a rank that is stopped
        raise


def resume_slowly(folder: str, seconds: float) -> dict[str, Any]:
    """Resume from a checkpoint whose files take rank 0 longer to check than the time limit."""
    newest_resumable = checkpoints.newest_resumable

    def slow(path: Path) -> Path:
        assert dist.get_rank() == 0
        time.sleep(seconds)
        return newest_resumable(path)

    checkpoints.newest_resumable = slow
    return resume("shared", folder, {"timeout_seconds": LIMIT})
