"""The first contact of every pair of ranks that exchange messages, in an order that all ranks share.

NCCL creates a communicator when two ranks first communicate, and both wait for each other. During the first step these
waits could deadlock. Here they happen before it, in an order that cannot deadlock for any plan.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.schedule import LoweredSchedule, ReceiveOffloaded, Send


def communicating_pairs(lowered: LoweredSchedule, placement: RankPlacement) -> frozenset[Pair]:
    """Return the pairs of ranks between which a lowered schedule has messages."""
    sends = (it.transfer for _, it in lowered.order if isinstance(it, Send))
    ends = {(transfer.source_device, transfer.target_device) for transfer in sends}
    ends |= {(device, it.source_device) for device, it in lowered.order if isinstance(it, ReceiveOffloaded)}
    ranks = (sorted((placement.rank_of[one], placement.rank_of[other])) for one, other in ends)
    return frozenset((low, high) for low, high in ranks if low != high)


def disjoint_rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return the pairs in rounds. A rank is in at most one pair of a round, so the pairs of a round do not wait.

    Each pair is put into the first round that has room for it. If a rank has at most d partners, there are at most
    2 d - 1 rounds, because each rank of a pair is in at most d - 1 other rounds.
    """
    rounds: list[list[Pair]] = []
    for pair in sorted(pairs):
        free = (one for one in rounds if not {*pair} & {*chain(*one)})
        there = next(free, None)
        if there is None:
            rounds.append([pair])
        else:
            there.append(pair)
    return rounds


def warm_up(world: World, pairs: Sequence[Pair]) -> None:
    """Let every pair exchange their ranks in both directions; all ranks pass the same pairs.

    Each rank handles its pairs in the order of the list, so both ranks of the first remaining pair are ready.

    Raises:
        PeerLost, PeerStalled: the other rank of a pair is gone.
    """
    for pair in pairs:
        if world.rank in pair:
            low, high = pair
            for source, target in ((low, high), (high, low)):
                _send_rank(world, source, target)


def _send_rank(world: World, source: int, target: int) -> None:
    peer = target if world.rank == source else source
    number = torch.full((1,), world.rank, dtype=torch.int64, device=world.device)
    with world.waiting_for(peer):
        ways = world.p2p
        work = ways.send(number, target) if world.rank == source else ways.receive(number, source)
        work.wait()
        heard = int(number.item())  # on a GPU only this waits for the message itself
    assert heard == source, f"rank {world.rank} expected the number of rank {source} and got {heard}"
