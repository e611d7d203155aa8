"""Collective calls that wait for slow work of another rank, but not for a rank that is gone."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from graphpipe.errors import CheckpointCorrupt, GraphPipeError, InvalidInput
from graphpipe.run.comm.world import World

Result = TypeVar("Result")
_KINDS = {kind.__name__: kind for kind in (GraphPipeError, InvalidInput, CheckpointCorrupt)}


def collective_call(world: World, work: Callable[[], Result], *, slow: bool = False) -> Result:
    """Do this rank's work, and return its result once every rank has done its work; every rank must call this.

    Args:
        world: this rank.
        work: of this rank.
        slow: wait for the others without a time limit (see `wait_for_ranks`); `work` must not communicate then.

    Raises:
        InvalidInput, CheckpointCorrupt: on every rank, the error of the first rank that failed. A file that cannot
            be read or written is InvalidInput.
        PeerLost, PeerStalled: another rank is gone.
    """
    results: list[Result] = []

    def attempt() -> dict[str, str] | None:
        try:
            results.append(work())
        except OSError as error:
            return _describe(unusable_file(error))
        except GraphPipeError as error:
            if type(error).__name__ not in _KINDS:
                raise
            return _describe(error)
        return None

    for rank, other in enumerate(wait_for_ranks(world, attempt) if slow else world.exchange(attempt())):
        if other is not None:
            whose = f" (on rank {rank}{world.about(rank)})" if world.size > 1 else ""
            raise _KINDS[other["kind"]](other["what"] + whose, where=other["where"], remedy=other["remedy"])
    return results[0]


def unusable_file(error: OSError) -> InvalidInput:
    """Return the error for a file that the system refuses to read or write."""
    remedy = "Make room, or choose another place; what was there before is still there."
    return InvalidInput(
        f"cannot be used: {error.strerror or error}", where=str(error.filename or "file"), remedy=remedy
    )


def _describe(error: GraphPipeError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}


_WORKING = "still working"
_WITHIN_LIMIT = 4
"""How many signs of life a working rank sends within the time limit."""


def wait_for_ranks(world: World, work: Callable[[], object]) -> list[Any]:
    """Do this rank's work; return what every rank's returned, in rank order. Every rank must call this.

    The time limit is for a silent rank. A rank that works sends signs of life from a thread:

        rank 0     checks the files of a checkpoint .............. they are valid
        its thread         still working    still working
        rank 1     waits ............ waits .......... waits ....

    A process that is killed or stopped does not send them, so it is detected as lost. Work that never ends, as on a
    disk that does not answer, is waited for, because it cannot be distinguished from long work.

    Args:
        world: this rank.
        work: of this rank; it must not communicate. It returns a JSON value. What it raises is raised here, and the
            other ranks are not told.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    with _signs_of_life(world):
        own = work()
    told: list[Any] = [_WORKING]
    while _WORKING in told:
        told = world.exchange(own)
    return told


@contextmanager
def _signs_of_life(world: World) -> Generator[None]:
    # Work stays in the calling thread, because the user's code and CUDA's current device may depend on it.
    if world.size == 1:
        yield
        return
    over, problems = threading.Event(), list[Exception]()

    def send_signs() -> None:
        try:
            world.kind.select(world.device)
            while not over.wait(world.timeout.total_seconds() / _WITHIN_LIMIT):
                world.exchange(_WORKING)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=send_signs, daemon=True, name="graphpipe-signs-of-life")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if problems:
        raise problems[0]
