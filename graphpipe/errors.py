"""The exceptions of this package. Each message says what is wrong, where, and what to do about it."""

import math


class GraphPipeError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        what: one sentence without a full stop: the fact, with both sides of a mismatch.
        where: the file, field, stage or rank where it was found; empty if that is clear from the call.
        remedy: what the reader can do, as a sentence; empty if nothing can be done.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message}. {remedy}" if remedy else message)


class InvalidInput(GraphPipeError, ValueError):
    """The user gave a value that cannot be used. The message names it and the remedy."""


class Infeasible(GraphPipeError, ValueError):
    """No plan satisfies the constraints. The message names the stage that does not fit, and by how much."""


class NonFiniteLoss(GraphPipeError, ArithmeticError):
    """The loss or a gradient of a step is NaN or infinite. It is raised before the optimizer changes any weight."""


class OutOfMemory(GraphPipeError, MemoryError):
    """A device, or the node that a stage offloads to, ran out of memory. The message names the stage and the task."""


class PeerLost(GraphPipeError, RuntimeError):
    """Another rank died or closed its connection."""


class PeerStalled(GraphPipeError, RuntimeError):
    """Another rank did not answer within the time limit."""


class CheckpointCorrupt(GraphPipeError, ValueError):
    """A checkpoint's content does not match its manifest."""


def check_not_negative(amount: float, where: str, remedy: str = "") -> None:
    """Check an amount that a file or a caller gives.

    Raises:
        InvalidInput: negative, infinite or NaN.
    """
    if not 0 <= amount < math.inf:
        raise InvalidInput(f"is {amount}, must be finite and not negative", where=where, remedy=remedy)


def nearest(word: str, known: list[str]) -> str:
    """Return "did you mean X? known: ..." for an unknown `word`, to end an error sentence."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    return f"{guess}Known: {', '.join(sorted(known))}."
