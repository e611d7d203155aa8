"""Work that must succeed on all ranks or be given up on all of them, for one and the same reason."""

from collections.abc import Callable
from typing import TypeVar

from graphpipe.errors import CheckpointCorrupt, GraphPipeError, InvalidInput
from graphpipe.run.comm.collective_calls import patiently
from graphpipe.run.comm.world import World

Result = TypeVar("Result")
_KINDS = {kind.__name__: kind for kind in (GraphPipeError, InvalidInput, CheckpointCorrupt)}


def together(world: World, work: Callable[[], Result], *, patient: bool = False) -> Result:
    """Do this rank's work and return its result, once every rank has done its own; every rank must call this.

    Args:
        world: this rank.
        work: of this rank.
        patient: wait for the others' work as long as it takes (see `patiently`); no rank's may talk to others then.

    Raises:
        InvalidInput, CheckpointCorrupt: on every rank, what the first rank in trouble met with. A file that cannot
            be read or written is InvalidInput.
        PeerLost, PeerStalled: another rank is gone.
    """
    results: list[Result] = []

    def attempt() -> dict[str, str] | None:
        try:
            results.append(work())
        except OSError as error:
            return _describe(unusable(error))
        except GraphPipeError as error:
            if type(error).__name__ not in _KINDS:
                raise
            return _describe(error)
        return None

    for rank, other in enumerate(patiently(world, attempt) if patient else world.exchange(attempt())):
        if other is not None:
            whose = f" (on rank {rank}{world.about(rank)})" if world.size > 1 else ""
            raise _KINDS[other["kind"]](other["what"] + whose, where=other["where"], remedy=other["remedy"])
    return results[0]


def unusable(error: OSError) -> InvalidInput:
    """Return the error that names a file the system refuses, and why."""
    remedy = "Make room, or choose another place; what was there before is still there."
    return InvalidInput(
        f"cannot be used: {error.strerror or error}", where=str(error.filename or "file"), remedy=remedy
    )


def _describe(error: GraphPipeError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}
