"""Ranks compare their mini-batches before sending; on a mismatch nothing is sent.

Before a step every rank sends its neighbours a description of its mini-batch. It reads theirs before its first message
of the step; a rank that computes first does not wait for them, because they have arrived by then.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.schedule import LoweredSchedule, Send

_TAG = 2
"""Other messages between ranks have tags 0 and 1."""
_DIGEST, _LENGTH = 16, 256
"""Bytes of the digest, which is compared, and of the whole message, whose rest is the start of the description."""


def neighbours(
    plan: Plan,
    placement: RankPlacement,
    lowered: LoweredSchedule,
    rank: int,
    others: Collection[tuple[int, int]] = (),
) -> tuple[int, ...]:
    """Return the ranks that a rank sends to or receives from, and its neighbours among the replicas of a stage.

    A rank without a stage compares its mini-batch with a rank of the first stage.

    Args:
        plan: to be run.
        placement: of the plan on the ranks.
        lowered: the schedule.
        rank: whose neighbours are returned.
        others: pairs of devices that exchange messages besides.
    """
    ends = [
        (placement.rank_of[action.transfer.source_device], placement.rank_of[action.transfer.target_device])
        for _, action in lowered.order
        if isinstance(action, Send)
    ]
    for stage in range(len(plan.stages)):
        ranks = sorted(set(placement.all_ranks(stage)))
        ends += pairwise(ranks)
    ends += [(placement.rank_of[one], placement.rank_of[other]) for one, other in others]
    ends += [(placement.ranks(0)[0], idle) for idle in placement.idle]
    return tuple(sorted({other for pair in ends if rank in pair for other in pair} - {rank}))


@dataclass(slots=True, kw_only=True)
class BatchComparison:
    """A comparison of mini-batches that has begun."""

    world: World
    own: Tensor
    """The message of this rank."""
    given: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The messages of other ranks, by rank."""
    works: list[tuple[int, dist.Work]] = field(default_factory=list[tuple[int, dist.Work]])
    """The pending sends and receives, with their peers."""

    @staticmethod
    def begin(world: World, peers: Iterable[int], text: str) -> "BatchComparison":
        """Begin a comparison; all peers must call this.

        Args:
            world: this rank.
            peers: the ranks to compare with.
            text: the description that must be equal on all ranks, as the end of a sentence that begins with "rank 1".

        Raises:
            PeerLost, PeerStalled: a peer is gone.
        """
        comparison = BatchComparison(world=world, own=_encoded(text))
        if world.size > 1:
            for peer in peers:
                comparison.ask(peer)
        return comparison

    def ask(self, peer: int) -> None:
        """Start to exchange messages with a peer."""
        self.given[peer] = torch.empty_like(self.own)
        with self.world.waiting_for(peer):
            sent, come = (
                self.world.control_p2p.send(self.own, peer, _TAG),
                self.world.control_p2p.receive(self.given[peer], peer, _TAG),
            )
        self.works += [(peer, sent), (peer, come)]

    def settle(self) -> None:
        """Wait for the peers' messages and compare them.

        Raises:
            InvalidInput: a peer was given another mini-batch; names the peer.
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
                    remedy="Give every rank the same, whole mini-batch, drawn only from the epoch and the seed: "
                    "each takes the samples it needs. Or give every rank its share of the same samples.",
                )


@lru_cache(maxsize=8)
def _encoded(text: str) -> Tensor:
    data = text.encode()
    message = blake2b(data, digest_size=_DIGEST).digest() + data[: _LENGTH - _DIGEST]
    return torch.frombuffer(bytearray(message.ljust(_LENGTH, b"\0")), dtype=torch.uint8)


def _text(message: Tensor) -> str:
    return bytes(message.tolist()[_DIGEST:]).rstrip(b"\0").decode(errors="replace")
