"""One mini-batch, one meaning: ranks that talk to each other were given inputs of the same shapes, or none sends.

Before a step every rank tells its neighbours what it was given; the answers are read before its first message, and
have come by then: a rank that computes first does not wait for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.schedule import LoweredSchedule, Send

_TAG = 2
"""Other messages between ranks have tags 0 and 1."""
_DIGEST, _LENGTH = 16, 256
"""Bytes of what is compared, and of the whole message: the rest is for a sentence, as much as fits."""


def neighbours(plan: Plan, placement: Placement, lowered: LoweredSchedule, rank: int) -> tuple[int, ...]:
    """Return the ranks that a rank sends to or receives from, and those next to it among the replicas of a stage."""
    ends = [
        (placement.rank_of[action.transfer.source_device], placement.rank_of[action.transfer.target_device])
        for _, action in lowered.order
        if isinstance(action, Send)
    ]
    for stage in range(len(plan.stages)):
        ranks = sorted(set(placement.ranks(stage)))
        ends += pairwise(ranks)
    return tuple(sorted({other for pair in ends if rank in pair for other in pair} - {rank}))


@dataclass(slots=True, kw_only=True)
class Agreement:
    """A comparison under way."""

    world: World
    own: Tensor
    """What this rank was given, as `_encoded`."""
    given: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The same of other ranks, by rank."""
    works: list[tuple[int, dist.Work]] = field(default_factory=list[tuple[int, dist.Work]])
    """What to wait for, and for whom."""

    @staticmethod
    def begin(world: World, peers: Iterable[int], text: str) -> "Agreement":
        """Start to compare; all peers must call this.

        Args:
            world: this rank.
            peers: whom to compare with. NCCL, which has no tags, compares all ranks, and at once.
            text: what must be the same, as the end of a sentence that begins with "rank 1".

        Raises:
            PeerLost, PeerStalled: a peer is gone.
        """
        found = Agreement(world=world, own=_encoded(text).to(world.device))
        if world.size > 1 and not world.in_order:
            for peer in peers:
                found.ask(peer)
        elif world.size > 1:
            texts = [torch.empty_like(found.own) for _ in range(world.size)]
            with world.waiting_for(None):
                dist.all_gather(texts, found.own, group=world.everyone)
            found.given = dict(enumerate(texts))
        return found

    def ask(self, peer: int) -> None:
        """Tell a peer what this rank was given, and expect the same of it."""
        self.given[peer] = torch.empty_like(self.own)
        with self.world.waiting_for(peer):
            sent, come = (
                self.world.messages.send(self.own, peer, _TAG),
                self.world.messages.receive(self.given[peer], peer, _TAG),
            )
        self.works += [(peer, sent), (peer, come)]

    def settle(self) -> None:
        """Wait for the answers.

        Raises:
            InvalidInput: a peer was given something else; names it.
            PeerLost, PeerStalled: a peer is gone.
        """
        try:
            for peer, work in self.works:
                with self.world.waiting_for(peer):
                    work.wait()
        finally:
            self.works.clear()  # a handle keeps its connection open
        for peer, given in self.given.items():
            if not torch.equal(given, self.own):
                raise InvalidInput(
                    f"rank {peer} {_text(given)}; rank {self.world.rank} {_text(self.own)}",
                    where="mini-batch",
                    remedy="Give every rank the same, whole mini-batch, drawn from the epoch and the seed alone: "
                    "each takes the samples it needs.",
                )


@lru_cache(maxsize=8)
def _encoded(text: str) -> Tensor:
    data = text.encode()
    message = blake2b(data, digest_size=_DIGEST).digest() + data[: _LENGTH - _DIGEST]
    return torch.frombuffer(bytearray(message.ljust(_LENGTH, b"\0")), dtype=torch.uint8)


def _text(message: Tensor) -> str:
    return bytes(message.tolist()[_DIGEST:]).rstrip(b"\0").decode(errors="replace")
