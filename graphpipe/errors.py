"""What can go wrong, said so that a reader knows what, where, and what to do about it."""


class GraphPipeError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        what: one sentence without a full stop: the fact, with both sides of a mismatch.
        where: the file, field, stage or rank it was found in; empty when the call itself says it.
        remedy: what the reader can do, as a sentence; empty when nothing can be done.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message}. {remedy}" if remedy else message)


class InvalidInput(GraphPipeError, ValueError):
    """The user gave something that cannot be used; the message names it and the remedy."""


class Infeasible(GraphPipeError, ValueError):
    """No plan satisfies the constraints; the message names the stage and by how much it misses."""


class NonFiniteLoss(GraphPipeError, ArithmeticError):
    """The loss or a gradient of a step is NaN or infinite; raised before the optimizer changes any weight."""


class OutOfMemory(GraphPipeError, MemoryError):
    """A rank's device has no more memory; the message names the stage and what it was doing."""


class PeerLost(GraphPipeError, RuntimeError):
    """Another rank died or closed its connection."""


class PeerStalled(GraphPipeError, RuntimeError):
    """Another rank did not answer within the time limit."""


class CheckpointCorrupt(GraphPipeError, ValueError):
    """A checkpoint's content does not match its manifest."""


def nearest(word: str, known: list[str]) -> str:
    """Return "did you mean X? known: ..." for an unknown `word`, to end an error sentence."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    return f"{guess}Known: {', '.join(sorted(known))}."
