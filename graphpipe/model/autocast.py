"""Torch's autocast for a precision: of real forwards, and of forwards on fake tensors, which count their bytes."""

from contextlib import AbstractContextManager, nullcontext

import torch

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import PRECISIONS

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(name: str) -> None:
    """Check the name of a precision.

    Raises:
        InvalidInput: the name is unknown; the error suggests the nearest.
    """
    if name not in PRECISIONS:
        raise InvalidInput(f"unknown precision '{name}'", where="precision", remedy=nearest(name, list(PRECISIONS)))


def autocast_context(name: str | None, device: torch.device | str) -> AbstractContextManager[object]:
    """Return the autocast context for forwards and losses."""
    if name not in DTYPES:
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=DTYPES[name])
