"""Pairs of ranks that send each other messages, and their first message, in an order that all ranks share.

NCCL makes a communicator for every two ranks when they first talk, and both wait there for each other. Left to the
first step, these waits would follow the schedule; here they come before it, in an order that ends whatever the plan.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.schedule import LoweredSchedule, Send

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


def talking(lowered: LoweredSchedule, placement: Placement) -> frozenset[Pair]:
    """Return the pairs of ranks between which a lowered schedule has messages."""
    ends = (
        sorted((placement.rank_of[it.transfer.source_device], placement.rank_of[it.transfer.target_device]))
        for _, it in lowered.order
        if isinstance(it, Send)
    )
    return frozenset((low, high) for low, high in ends if low != high)


def rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return the pairs in rounds, in each of which a rank is in one pair at most: those of a round need not wait.

    Each pair comes in the first round that has room for it. With d the most partners of any rank there are at most
    2 d - 1 rounds, since each end of a pair is busy in d - 1 others at most.
    """
    found: list[list[Pair]] = []
    for pair in sorted(pairs):
        free = (one for one in found if not {*pair} & {*chain(*one)})
        there = next(free, None)
        if there is None:
            found.append([pair])
        else:
            there.append(pair)
    return found


def warm_up(world: World, pairs: Sequence[Pair]) -> None:
    """Let every pair exchange its numbers, both ways, one pair after the other; all ranks give the same pairs.

    Each rank comes to its own pairs in the order of the whole list, so the first pair that is left can always talk.

    Raises:
        PeerLost, PeerStalled: the other rank of a pair is gone.
    """
    for pair in pairs:
        if world.rank in pair:
            low, high = pair
            for source, target in ((low, high), (high, low)):
                _say(world, source, target)


def _say(world: World, source: int, target: int) -> None:
    peer = target if world.rank == source else source
    number = torch.full((1,), world.rank, dtype=torch.int64, device=world.device)
    with world.waiting_for(peer):
        ways = world.messages
        work = ways.send(number, target) if world.rank == source else ways.receive(number, source)
        work.wait()
        heard = int(number.item())  # on a GPU only this waits for the message itself
    assert heard == source, f"rank {world.rank} expected the number of rank {source} and got {heard}"
