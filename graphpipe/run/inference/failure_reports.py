"""Brings the samples that failed on any rank to the rank that answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.world import World

_TAG = 3
"""Messages of values and comparisons have tags 0 to 2."""


@dataclass(slots=True, kw_only=True)
class FailureReports:
    """After every window, each rank with a stage sends the rank that answers its report: the length, then the text."""

    world: World
    root: int
    """The rank that answers."""
    members: Sequence[int]
    """The other ranks with a stage."""
    sending: list[tuple[dist.Work, Tensor]] = field(default_factory=list[tuple[dist.Work, Tensor]])

    def exchange(self, own: Mapping[int, str]) -> dict[int, str]:
        """Return all failures by sample on the rank that answers; elsewhere send this rank's.

        Raises:
            PeerLost, PeerStalled: a rank is gone.
        """
        if self.world.rank == self.root:
            failures = dict(own)
            for member in self.members:
                failures = self._receive(member) | failures
            return failures
        if self.world.rank in self.members:
            self._send(own)
        return {}

    def _send(self, own: Mapping[int, str]) -> None:
        text = json.dumps(list(own.items())).encode() if own else b""
        messages = [torch.tensor([len(text)], device=self.world.device)]
        if text:
            messages.append(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.world.device))
        self.wait()
        with self.world.waiting_for(self.root):
            self.sending = [(self.world.p2p.send(message, self.root, _TAG), message) for message in messages]

    def _receive(self, member: int) -> dict[int, str]:
        length = torch.zeros(1, dtype=torch.int64, device=self.world.device)
        with self.world.waiting_for(member):
            self.world.p2p.receive(length, member, _TAG).wait()
            if not (count := int(length.item())):
                return {}
            text = torch.empty(count, dtype=torch.uint8, device=self.world.device)
            self.world.p2p.receive(text, member, _TAG).wait()
        return {int(sample): str(reason) for sample, reason in json.loads(bytes(text.tolist()))}

    def wait(self) -> None:
        """Wait until the last report has arrived."""
        with self.world.waiting_for(self.root):
            for work, _ in self.sending:
                work.wait()
        self.sending = []
