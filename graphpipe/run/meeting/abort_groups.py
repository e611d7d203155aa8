"""Ends what is pending in groups of ranks after an error, where closing them would wait for it.

torch closes a group of NCCL once its kernels are done. A kernel that waits for a rank which has raised an error is
never done, so the process would stay until NCCL's watchdog ends it.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import torch.distributed as dist

ABORT_SECONDS = 10.0
"""How long it may take. The process ends soon after, with or without these groups."""


def abort_groups(groups: Iterable[dist.ProcessGroup], seconds: float = ABORT_SECONDS) -> bool:
    """Abort groups, all of them side by side, and return whether that was possible in time.

    While NCCL aborts one communicator it frees memory, and that waits for the kernels of the others on the same GPU.
    One after the other, they could wait for ever (github.com/pytorch/pytorch/issues/119797).

    Args:
        groups: to be aborted. Whoever waits for an operation of theirs gets an error.
        seconds: how long to wait.
    """
    threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _abort(group: dist.ProcessGroup) -> None:
    with suppress(RuntimeError):  # The watchdog may have aborted it already.
        group.abort()
