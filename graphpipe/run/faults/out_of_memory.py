"""A device without memory, told as such: torch has a kind of error for it on GPUs only."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from graphpipe.errors import OutOfMemory
from graphpipe.run.faults.status_reporter import Watch


@contextmanager
def naming_shortage(watch: Watch) -> Generator[None]:
    """Turn an allocation that fails inside into `OutOfMemory`, which says where."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_shortage(error):
            raise
        raise OutOfMemory(
            f"out of memory: {next(iter(str(error).splitlines()), '')}",
            where=str(watch.where),
            remedy="Plan smaller micro-batches, recomputation, or more devices for this stage.",
        ) from error


def _is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
