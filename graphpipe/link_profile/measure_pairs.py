"""Measures the link between pairs of ranks: latency, bandwidth, and the work that a message costs a process.

    small messages   there and back, one pair at a time     latency: half of a round trip, minus the work of both ends
    large messages   there and back, one pair at a time     bandwidth, after the latency
    work             all ranks compute and send in turn     processor time with messages minus that without

A message costs a rank more work between two tasks than in a loop that does nothing else: the task has taken the caches,
and the thread that receives must be woken. So the work is measured between computations, on all ranks at once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch

from graphpipe.cluster import Link
from graphpipe.run.comm.messages import PendingMessage
from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.warm_up_pairs import disjoint_rounds, warm_up
from graphpipe.run.comm.world import World

SMALL_BYTES, MIDDLE_BYTES, LARGE_BYTES = 1 << 10, 1 << 20, 1 << 23
ROUND_TRIPS, LARGE_ROUND_TRIPS, REPEATS = 100, 5, 5
TASKS, BLOCKS = 10, 40
UNRECEIVED = 4
"""How many messages a rank sends before it waits for them, as a pipeline has some in transit."""
MATRIX = 256
"""Rows and columns of the two matrices of a computation, about a third of a millisecond on one core."""


@dataclass(slots=True)
class _Exchange:
    """Messages of one size between this rank and another."""

    world: World
    peer: int
    outgoing: torch.Tensor
    incoming: torch.Tensor
    sent: list[PendingMessage] = field(default_factory=list[PendingMessage])

    @classmethod
    def of(cls, world: World, pair: Pair, size: int) -> "_Exchange":
        """Prepare messages of `size` bytes between this rank and the other one of the pair."""
        low, high = pair
        outgoing, incoming = (torch.zeros(size, dtype=torch.uint8, device=world.device) for _ in range(2))
        return cls(world, high if world.rank == low else low, outgoing, incoming)

    def send(self) -> None:
        with self.world.waiting_for(self.peer):
            work = self.world.p2p.send(self.outgoing, self.peer)
        self.sent.append(PendingMessage(work, self.outgoing, self.peer, self.world))
        if len(self.sent) == UNRECEIVED:
            self.drain()

    def receive(self) -> None:
        with self.world.waiting_for(self.peer):
            work = self.world.p2p.receive(self.incoming, self.peer)
        PendingMessage(work, self.incoming, self.peer, self.world).wait()

    def drain(self) -> None:
        for message in self.sent:
            message.wait()
        self.sent.clear()

    def there_and_back(self) -> None:
        """Send and receive; the rank with the lower number begins."""
        first, second = (self.send, self.receive) if self.world.rank < self.peer else (self.receive, self.send)
        first()
        second()
        self.drain()
        self.world.kind.synchronize(self.world.device)


def measure_pairs(world: World, pairs: Sequence[Pair]) -> list[Link]:
    """Measure the links between pairs of ranks, and return them in order. Every rank passes the same pairs.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    torch.set_num_threads(1)  # Ranks that share cores compute with one thread each.
    rounds = disjoint_rounds(pairs)
    if world.in_order:
        world.open_pairs(pairs)
        warm_up(world, [pair for together in rounds for pair in together])
    works: dict[Pair, tuple[float, float]] = {}
    for together in rounds:
        works |= _works(world, together)
    links: list[Link] = []
    for pair in pairs:
        per_message, per_byte = works[pair]
        small, large, at_ends = _one_way_seconds(world, pair)
        links.append(
            Link(
                latency_seconds=max(0.0, small - at_ends),
                bandwidth_bytes_per_second=(LARGE_BYTES - SMALL_BYTES) / max(large - small, 1e-9),
                processor_seconds=per_message,
                processor_seconds_per_byte=per_byte,
            )
        )
    return links


def _one_way_seconds(world: World, pair: Pair) -> tuple[float, float, float]:
    """Return the seconds of a small and of a large message, and the work of both ends for a small one.

    They are the least of some repeats, and the same on every rank.
    """
    seconds = [0.0, 0.0]
    work = 0.0
    for number, (size, rounds) in enumerate(((SMALL_BYTES, ROUND_TRIPS), (LARGE_BYTES, LARGE_ROUND_TRIPS))):
        world.barrier()
        if world.rank in pair:
            exchange = _Exchange.of(world, pair, size)
            exchange.there_and_back()
            start = time.process_time()
            times = [_seconds(time.perf_counter, exchange.there_and_back, rounds) for _ in range(REPEATS)]
            seconds[number] = min(times) / 2
            work = work or (time.process_time() - start) / rounds / REPEATS / 2
    of_ranks = world.exchange([*seconds, work])
    small, large, _ = of_ranks[pair[0]]
    return small, large, of_ranks[pair[0]][2] + of_ranks[pair[1]][2]


def _works(world: World, pairs: Sequence[Pair]) -> dict[Pair, tuple[float, float]]:
    """Return the work per message and per byte for pairs that have no rank in common, while all of them compute."""
    if not world.kind.on_host:  # The device does not send messages itself.
        return dict.fromkeys(pairs, (0.0, 0.0))
    own = next((pair for pair in pairs if world.rank in pair), None)
    of_ranks = world.exchange([_work(world, own, size) for size in (SMALL_BYTES, MIDDLE_BYTES)])
    works: dict[Pair, tuple[float, float]] = {}
    for low, high in pairs:
        small, large = (max(0.0, (one + other) / 2) for one, other in zip(of_ranks[low], of_ranks[high], strict=True))
        works[low, high] = small, max(0.0, large - small) / (MIDDLE_BYTES - SMALL_BYTES)
    return works


def _work(world: World, pair: Pair | None, size: int) -> float:
    """Return the processor seconds that a message costs this rank, in the mean of many; 0 without a peer.

    The mean, not the median: most messages cost 0.1 ms, but some cost milliseconds, because gloo's thread spins for a
    lock while the thread that holds it waits for a core. A block without messages is next to each block with them, so
    that both have the machine at the same pace.
    """
    differences: list[float] = []
    exchange = None if pair is None else _Exchange.of(world, pair, size)
    for _ in range(BLOCKS):
        world.barrier()
        alone = _seconds(time.process_time, _compute, TASKS)
        world.barrier()
        start = time.process_time()
        for turn in range(TASKS):
            _compute()
            if exchange is not None:
                sends = (turn + (world.rank < exchange.peer)) % 2
                (exchange.send if sends else exchange.receive)()
        differences.append((time.process_time() - start) / TASKS - alone)
        if exchange is not None:
            exchange.drain()
    return fmean(differences)


def _compute() -> None:
    factor = torch.ones(MATRIX, MATRIX)
    torch.mm(factor, factor)


def _seconds(clock: Callable[[], float], call: Callable[[], None], times: int) -> float:
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times
