"""Sums a few numbers over all ranks at the end of a step: every rank sends them to one rank, which returns the sums.

An all-reduce starts when the last rank arrives, and then takes several rounds of messages. Here the other ranks have
already sent their numbers to the rank that ends last, so that rank continues at once, and every other rank waits for
only one message after it.
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.world import World

_TAG = 1
"""Other messages between ranks have tag 0."""


@dataclass(slots=True)
class ScalarSum:
    """Sums over all ranks of `count` numbers, in float64; all ranks call its methods alike.

    The numbers are on the host, and their messages apart from those of devices (`World.control`).
    """

    world: World
    count: int
    """How many numbers each rank adds."""
    root: int
    """The rank that sums: ideally the one that ends last, as a rank of the first stage does."""
    _times: int = 1
    _arriving: dict[int, tuple[Tensor, dist.Work]] = field(default_factory=dict[int, tuple[Tensor, dist.Work]])
    """Pending receives, by rank."""
    _leaving: list[tuple[Tensor, dist.Work]] = field(default_factory=list[tuple[Tensor, dist.Work]])

    def expect(self, times: int = 1) -> None:
        """Post the receives, before the work whose numbers are summed.

        Args:
            times: `add_up` will get so many times `count` numbers.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        self._times = times
        if self.world.size == 1:
            return
        with self.world.waiting_for(None):
            for rank in self._others if self.world.rank == self.root else [self.root]:
                tensor = torch.empty(self.count * times, dtype=torch.float64)
                self._arriving[rank] = tensor, self.world.control_p2p.receive(tensor, rank, _TAG)

    def add_up(self, own: list[float]) -> list[float]:
        """Return the sums over all ranks, added in rank order; `expect` must be called before.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        assert len(own) == self.count * self._times
        if self.world.size == 1:
            return own
        tensor = torch.tensor(own, dtype=torch.float64)
        if self.world.rank == self.root:
            given = {self.root: tensor} | {rank: self._take(rank) for rank in self._others}
            tensor = torch.stack([given[rank] for rank in range(self.world.size)]).sum(dim=0)
            for rank in self._others:
                self._send(tensor, rank)
            self._finish()
        else:
            self._send(tensor, self.root)
            tensor = self._take(self.root)
            self._finish()
        return tensor.tolist()

    def forget(self) -> None:
        """Drop all messages, because a handle keeps its connection open."""
        self._arriving.clear()
        self._leaving.clear()

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.world.size) if rank != self.root]

    def _send(self, tensor: Tensor, rank: int) -> None:
        with self.world.waiting_for(None):
            self._leaving.append((tensor, self.world.control_p2p.send(tensor, rank, _TAG)))

    def _finish(self) -> None:
        # The peer posted its receive when its step began, so this wait is short. A message that begins before torch's
        # profiler stops and ends afterwards would crash the process.
        with self.world.waiting_for(None):
            for _, work in self._leaving:
                work.wait()
        self._leaving.clear()

    def _take(self, rank: int) -> Tensor:
        tensor, work = self._arriving.pop(rank)
        # The root waits for each rank. The others wait for the root, which may itself wait for a rank that is gone.
        known = self.world.rank == self.root
        with self.world.waiting_for(rank if known else None):
            work.wait()
        return tensor
