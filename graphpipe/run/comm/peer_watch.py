"""Signs of life between ranks whose backend does not notice that a peer is lost, and the end of waiting for one.

NCCL waits for a dead rank until its watchdog ends the whole process. So every rank sends its neighbours a sign of life
over gloo, from a thread, and listens to theirs:

    connection closed    the neighbour died: PeerLost, at once
    no sign of life      its process is stopped, or its host is cut off: PeerStalled, after the time limit
    no progress          the neighbour lives and waits for nobody, but has begun nothing new, while this rank waits:
                         PeerStalled, after the time limit

The thread then aborts the messages of this rank, so that whoever waits for them gets that error in place of theirs.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.errors import PeerLost, PeerStalled
from graphpipe.run.comm.world import World
from graphpipe.run.meeting.peer_loss import LOOK, LOOK_OR_WAIT

_TAG = 5
"""Other messages between ranks have smaller tags."""
_WITHIN_LIMIT = 8
"""How many signs of life a rank sends within the time limit."""
_BYE, _FAILED = -1.0, -2.0
"""In place of the time: the rank has ended as it should, or after an error."""
_BYE_SECONDS = 0.5


class Progress(NamedTuple):
    """What a rank says of itself in a sign of life."""

    since: float
    """When it began what it does now, in seconds of its own clock."""
    waits: bool
    """Whether it waits for another rank."""


@dataclass(slots=True, kw_only=True)
class PeerWatch:
    """Watches the neighbours of one rank until it is closed."""

    world: World
    progress: Callable[[], Progress]
    """Returns the progress of this rank."""
    peers: list[int]
    over: threading.Event = field(default_factory=threading.Event)
    sending: list[dist.Work] = field(default_factory=list[dist.Work])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def begin(world: World, peers: Iterable[int], progress: Callable[[], Progress]) -> "PeerWatch | None":
        """Begin to watch the neighbours; all ranks must name each other alike. None: the backend notices by itself."""
        if not (world.kind.closing_waits and world.size > 1):
            return None
        watch = PeerWatch(world=world, progress=progress, peers=[*peers])
        world.at_close.append(lambda failed: watch.close(failed=failed))
        for work in (watch._send_signs, *(lambda peer=peer: watch._listen(peer) for peer in watch.peers)):
            threading.Thread(target=work, daemon=True, name="graphpipe-peer-watch").start()
        return watch

    def close(self, *, failed: bool) -> None:
        """Stop, and tell the neighbours.

        Args:
            failed: this rank ends after an error. Its own connections may stay open as long as its process.
        """
        self.over.set()
        self._send(torch.tensor([_FAILED if failed else _BYE, 0.0], dtype=torch.float64))
        end = time.monotonic() + _BYE_SECONDS
        for work in self.sending[-len(self.peers) :]:
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))

    def _send_signs(self) -> None:
        while not self.over.wait(self.world.timeout.total_seconds() / _WITHIN_LIMIT):
            now = self.progress()
            self._send(torch.tensor([now.since, float(now.waits)], dtype=torch.float64))

    def _send(self, sign: Tensor) -> None:
        with self.lock:
            for peer in self.peers:
                with suppress(RuntimeError, AssertionError):  # Who listens to this peer notices that it is lost.
                    self.sending.append(self.world.signs_of_life.send(sign.clone(), peer, _TAG))
            del self.sending[: -2 * len(self.peers)]

    def _listen(self, peer: int) -> None:
        seen, own, since = Progress(-1.0, waits=True), Progress(-1.0, waits=True), time.monotonic()
        while not self.over.is_set():
            sign = torch.zeros(2, dtype=torch.float64)
            try:
                self.world.signs_of_life.receive(sign, peer, _TAG).wait()
            except (RuntimeError, AssertionError) as error:
                self._found(peer, stalled="timed out" in str(error).lower())
                return
            began, waits = sign.tolist()
            if began in (_BYE, _FAILED):
                if began == _FAILED:
                    self._found(peer, stalled=False)
                return
            theirs, ours = Progress(began, bool(waits)), self.progress()
            if theirs != seen or theirs.waits or ours != own or not ours.waits:
                seen, own, since = theirs, ours, time.monotonic()
            elif time.monotonic() - since > self.world.timeout.total_seconds():
                self._found(peer, stalled=True)
                return

    def _found(self, peer: int, *, stalled: bool) -> None:
        if self.over.is_set() or self.world.loss.error is not None:
            return
        about = self.world.about(peer) + self.world.reach.verdict()
        if stalled:
            what = f"rank {peer} did not answer within the time limit{about}"
            self.world.loss.error = PeerStalled(what, remedy=LOOK_OR_WAIT)
        else:
            self.world.loss.error = PeerLost(f"rank {peer} died or closed its connection{about}", remedy=LOOK)
        self.world.abort()
