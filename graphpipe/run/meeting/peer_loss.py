"""Turns errors of torch.distributed into errors about the rank that was waited for, or about this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from graphpipe.errors import GraphPipeError, PeerLost, PeerStalled
from graphpipe.run.meeting.set_up_errors import set_up_error, what_happened

LOOK = "Look at that rank's own message: it came first."
"""The remedy of an error about a lost peer."""
LOOK_OR_WAIT = (
    "Look at that rank's own message, if it has one. If not, it may be reading data, or hang: find out what it does, "
    "or raise the time limit (timeout_seconds)."
)
"""The remedy of an error about a peer that is silent."""
_SIGNS_OF_LOSS = ("connection", "broken pipe", "remote process", "not connected")
_SIGNS_OF_ABORT = ("abort",)
_SIGNS_OF_SILENCE = ("timed out", "timeout")


def _nothing() -> str:
    return ""


@dataclass(slots=True)
class Loss:
    """The first peer that this rank has lost, as far as another thread has noticed it."""

    error: PeerLost | PeerStalled | None = None


def translate_loss(peer: str, about: Callable[[], str] = _nothing, loss: Loss | None = None) -> "Waiting":
    """Return a context that turns torch.distributed's errors about a lost peer into PeerLost or PeerStalled.

    An error that comes of how this machine is set up becomes InvalidInput, and all others stay what they are.

    Args:
        peer: the rank that is waited for, as the subject of the message.
        about: returns the end of the message; called once the peer is lost.
        loss: what another thread notices. If it has noticed one, entering and leaving the context raise that.
    """
    return Waiting(peer, about, loss or Loss())


@dataclass(frozen=True, slots=True)
class Waiting:
    """See `translate_loss`. A class, because it is entered for every message and a generator is slower."""

    peer: str
    about: Callable[[], str]
    loss: Loss

    def __enter__(self) -> None:
        """Begin to wait."""
        if self.loss.error is not None:
            raise self.loss.error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Translate an error of torch."""
        if not isinstance(error, RuntimeError) or isinstance(error, GraphPipeError):
            return
        text = what_happened(error)
        if self.loss.error is not None and any(sign in text for sign in (*_SIGNS_OF_ABORT, *_SIGNS_OF_LOSS)):
            raise self.loss.error from error  # Its groups were aborted, and so this wait ended.
        if (own := set_up_error(error)) is not None:
            raise own from error
        if any(sign in text for sign in _SIGNS_OF_SILENCE):
            what = f"{self.peer} did not answer within the time limit{self.about()}"
            raise PeerStalled(what, remedy=LOOK_OR_WAIT) from error
        if any(sign in text for sign in _SIGNS_OF_LOSS):
            raise PeerLost(f"{self.peer} died or closed its connection{self.about()}", remedy=LOOK) from error
