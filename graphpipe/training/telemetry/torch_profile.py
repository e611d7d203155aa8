"""torch's own profiler around some steps of a training, on every rank."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from torch.profiler import profile, schedule

from graphpipe.devices.registry import default_kind
from graphpipe.training.run_folder.run_folder import RunFolder

SKIPPED = 1
"""Steps before the recorded ones and the warm-up step of the profiler."""


@contextmanager
def torch_profile(folder: RunFolder, rank: int, wanted: int, left: int) -> Generator[Callable[[], None]]:
    """Record some steps into `torch-profile/rank-R.json` of a run's folder, which Perfetto reads.

    The runtime names a range for each task (`forward text micro-batch 3`), which contains torch's events.

    Args:
        folder: of the run.
        rank: this one.
        wanted: number of steps to record. 0 records nothing. If there are enough steps, one step is skipped before
            them and one warms up the profiler. Where the pipeline does not drain after a step, a whole segment counts
            as one.
        left: number of steps until the end of training.

    Yields:
        A function that must be called after every step.
    """
    recorded = min(wanted, left)
    if recorded < 1:
        yield lambda: None
        return
    path = folder.torch_profile(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    warmup = min(1, left - recorded)

    def save(ready: profile) -> None:
        ready.export_chrome_trace(str(path))

    with profile(
        activities=default_kind().activities,
        schedule=schedule(wait=min(SKIPPED, left - recorded - warmup), warmup=warmup, active=recorded, repeat=1),
        on_trace_ready=save,
    ) as profiler:
        yield profiler.step
