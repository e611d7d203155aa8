"""torch's own profiler around some steps of a training, on every rank."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER = "torch-profile"
SKIPPED = 1
"""Steps before those that are recorded and the one that warms the profiler up."""


@contextmanager
def profiled(directory: Path, rank: int, wanted: int, left: int) -> Generator[Callable[[], None]]:
    """Record some steps into `torch-profile/rank-R.json` of a run's folder, which Perfetto reads.

    The ranges that the runtime names (`forward text micro-batch 3`) stand around what torch does in them.

    Args:
        directory: of the run.
        rank: this one.
        wanted: steps to record; 0 records nothing. One step before them is left alone and one warms the profiler up,
            where there are so many.
        left: steps until the end of training.

    Returns:
        A context, which gives what must be called after every step.
    """
    recorded = min(wanted, left)
    if recorded < 1:
        yield lambda: None
        return
    path = directory / FOLDER / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    warmup = min(1, left - recorded)

    def save(ready: profile) -> None:
        ready.export_chrome_trace(str(path))

    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])],
        schedule=schedule(wait=min(SKIPPED, left - recorded - warmup), warmup=warmup, active=recorded, repeat=1),
        on_trace_ready=save,
    ) as profiler:
        yield profiler.step
