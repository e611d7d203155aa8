"""A few numbers of every rank, added up at the end of a step: to the rank that ends last, and back.

An all-reduce begins when the last rank comes, and takes several rounds of messages from there. Here whoever ends early
has sent its numbers by then, and the rank that ends last goes on at once: nobody waits for more than one message after
the last rank's work.
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.world import World

_TAG = 1
"""Other messages between ranks have tag 0."""


@dataclass(slots=True)
class Numbers:
    """Sums over all ranks of as many numbers each, in float64; every rank calls every method alike.

    NCCL has no tags, so that its messages cannot overtake those of the pipeline: there it is an all-reduce.
    """

    world: World
    count: int
    """How many."""
    root: int
    """The rank that adds up: best one that ends last, as the first stage does."""
    _arriving: dict[int, tuple[Tensor, dist.Work]] = field(default_factory=dict[int, tuple[Tensor, dist.Work]])
    """What is to come, by rank."""
    _leaving: list[tuple[Tensor, dist.Work]] = field(default_factory=list[tuple[Tensor, dist.Work]])

    def expect(self) -> None:
        """Get ready to receive, before the work whose numbers are added up.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        if not self._by_messages:
            return
        with self.world.waiting_for(None):
            for rank in self._others if self.world.rank == self.root else [self.root]:
                tensor = torch.empty(self.count, dtype=torch.float64)
                self._arriving[rank] = tensor, self.world.messages.receive(tensor, rank, _TAG)

    def add_up(self, own: list[float]) -> list[float]:
        """Return the sums over all ranks, in rank order; `expect` came before.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        assert len(own) == self.count
        if self.world.size == 1:
            return own
        tensor = torch.tensor(own, dtype=torch.float64, device=self.world.device)
        if not self._by_messages:
            self.world.sum(tensor)
        elif self.world.rank == self.root:
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
        """Let go of all messages: a handle keeps its connection open."""
        self._arriving.clear()
        self._leaving.clear()

    @property
    def _by_messages(self) -> bool:
        return self.world.size > 1 and not self.world.in_order

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.world.size) if rank != self.root]

    def _send(self, tensor: Tensor, rank: int) -> None:
        with self.world.waiting_for(None):
            self._leaving.append((tensor, self.world.messages.send(tensor, rank, _TAG)))

    def _finish(self) -> None:
        # The other side has been ready since its step began. A message that ends after torch's profiler has stopped,
        # but began before, crashes the process.
        with self.world.waiting_for(None):
            for _, work in self._leaving:
                work.wait()
        self._leaving.clear()

    def _take(self, rank: int) -> Tensor:
        tensor, work = self._arriving.pop(rank)
        # The root waits for everyone, and the others for it: it may not be the one that is gone.
        known = self.world.rank == self.root
        with self.world.waiting_for(rank if known else None):
            work.wait()
        return tensor
