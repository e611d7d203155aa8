"""`reporting_out_of_memory`: names the stage and the task in which an allocation failed.

Torch has a special exception for this only on GPUs. On CPUs a failed allocation is a plain `RuntimeError`.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from graphpipe.errors import OutOfMemory
from graphpipe.run.faults.status_reporter import StatusReporter

REMEDY = "Plan smaller micro-batches, recomputation, or more devices for this stage."


@contextmanager
def reporting_out_of_memory(monitor: StatusReporter, remedy: str = REMEDY) -> Generator[None]:
    """Turn a failed allocation in the block into `OutOfMemory`, which names what the rank was doing."""
    try:
        yield
    except OutOfMemory:
        raise
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory: {next(iter(str(error).splitlines()), '')}",
            where=str(monitor.last_status),
            remedy=remedy,
        ) from error


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
