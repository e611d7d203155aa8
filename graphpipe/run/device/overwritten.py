"""A value that a later micro-batch overwrites, although a backward still reads it."""

from collections.abc import Generator
from contextlib import contextmanager

from graphpipe.errors import InvalidInput

_OVERWRITTEN = "has been modified by an inplace operation"
_REMEDY = (
    "Give the submodule that changes a buffer or weight in place (add_, copy_, lerp_) the whole mini-batch "
    "(whole_batch=['NAME']), or plan with micro_batch equal to the batch size."
)


@contextmanager
def naming_overwritten(stage: str) -> Generator[None]:
    """Say in one sentence that a backward needs what was overwritten.

    Plain PyTorch goes from a forward to its backward. A pipeline runs forwards of other micro-batches in between, and
    these change a buffer again.

    Raises:
        InvalidInput: torch says so.
    """
    try:
        yield
    except RuntimeError as error:
        if _OVERWRITTEN not in str(error):
            raise
        what = f"stage '{stage}' computes with a value that its forward changes in place for the next micro-batch"
        raise InvalidInput(what, where="step", remedy=_REMEDY) from error
