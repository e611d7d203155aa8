"""Turns errors of torch.distributed into errors about the rank that was waited for, or about this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from graphpipe.errors import GraphPipeError, PeerLost, PeerStalled
from graphpipe.run.meeting.set_up_errors import set_up_error, what_happened

_LOOK = "Look at that rank's own message: it came first."
_SIGNS_OF_LOSS = ("connection", "broken pipe", "remote process", "not connected")
_SIGNS_OF_SILENCE = ("timed out", "timeout")


def _nothing() -> str:
    return ""


def translate_loss(peer: str, about: Callable[[], str] = _nothing) -> "Waiting":
    """Return a context that turns torch.distributed's errors about a lost peer into PeerLost or PeerStalled.

    An error that comes of how this machine is set up becomes InvalidInput, and all others stay what they are.

    Args:
        peer: the rank that is waited for, as the subject of the message.
        about: returns the end of the message; called once the peer is lost.
    """
    return Waiting(peer, about)


@dataclass(frozen=True, slots=True)
class Waiting:
    """See `translate_loss`. A class, because it is entered for every message and a generator is slower."""

    peer: str
    about: Callable[[], str]

    def __enter__(self) -> None:
        """Begin to wait."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Translate an error of torch."""
        if not isinstance(error, RuntimeError) or isinstance(error, GraphPipeError):
            return
        if (own := set_up_error(error)) is not None:
            raise own from error
        text = what_happened(error)
        if any(sign in text for sign in _SIGNS_OF_SILENCE):
            what = f"{self.peer} did not answer within the time limit{self.about()}"
            raise PeerStalled(what, remedy=_LOOK) from error
        if any(sign in text for sign in _SIGNS_OF_LOSS):
            raise PeerLost(f"{self.peer} died or closed its connection{self.about()}", remedy=_LOOK) from error
