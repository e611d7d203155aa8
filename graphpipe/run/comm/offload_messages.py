"""What stages of other ranks offload to this rank, and what its own stages offload to others: ordinary messages.

    stage's rank        Offload: send                     Fetch: receive                B: waits for it
    neighbour's rank    ReceiveOffloaded: into buffers    SendOffloaded: out of them    the next one frees them

The neighbour cannot know the sizes. So in each step they are sent before the first micro-batch of each replica, and all
others of the step must be alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.messages import PendingMessage
from graphpipe.run.comm.world import World
from graphpipe.schedule import ReceiveOffloaded, SendOffloaded
from graphpipe.units import format_bytes

_TAG = 4
"""Keeps these messages apart from those of the stage edges, some of whose receives begin early, and from all others."""

ReplicaKey = tuple[int, int]
"""A stage, and one of its devices."""


@dataclass(slots=True)
class OffloadMessages:
    """The messages of one rank with what stages offload to other ranks."""

    world: World
    sizes: dict[ReplicaKey, tuple[int, ...]] = field(default_factory=dict[ReplicaKey, tuple[int, ...]])
    """The bytes of the tensors of one micro-batch, by replica."""
    sending: dict[ReplicaKey, list[PendingMessage]] = field(default_factory=dict[ReplicaKey, list[PendingMessage]])
    """The messages of the last micro-batch that a replica of this rank has offloaded, which hold their tensors."""
    stored: dict[tuple[ReplicaKey, int], list[PendingMessage]] = field(
        default_factory=dict[tuple[ReplicaKey, int], list[PendingMessage]]
    )
    """What replicas of other ranks have offloaded to this one, by replica and micro-batch."""
    sending_back: dict[ReplicaKey, list[PendingMessage]] = field(default_factory=dict[ReplicaKey, list[PendingMessage]])
    """The messages of the last micro-batch that a replica of another rank has fetched."""

    def offload(self, replica: ReplicaKey, micro_batch: int, tensors: Sequence[Tensor], peer: int) -> None:
        """Start to send what a micro-batch of a replica of this rank offloads.

        Args:
            replica: stage and device.
            micro_batch: of the step.
            tensors: bytes. They are held until the replica offloads or fetches again.
            peer: the neighbour's rank.

        Raises:
            InvalidInput: another micro-batch of the step saved other sizes.
        """
        sizes = tuple(tensor.numel() for tensor in tensors)
        if (known := self.sizes.setdefault(replica, sizes)) != sizes:
            raise InvalidInput(
                f"micro-batch {micro_batch} saves {format_bytes(sum(sizes))} in {len(sizes)} tensors, which are "
                f"offloaded to a neighbour, another one of the step {format_bytes(sum(known))} in {len(known)}",
                where=f"stage {replica[0]}, offload_to",
                remedy="Leave offload_to out: the memory of the node takes any sizes.",
            )
        header: list[PendingMessage] = []
        if replica not in self.sending:
            for values in ([len(sizes)], [*sizes]):
                header.append(self._send(torch.tensor(values, device=self.world.device), peer))
        self.end(replica)
        self.sending[replica] = [*header, *(self._send(tensor, peer) for tensor in tensors)]
        if self.world.in_order:  # NCCL: only the current stream waits.
            self.end(replica)

    def end(self, replica: ReplicaKey) -> None:
        """Wait until what a replica has offloaded last is sent, and free its tensors."""
        for message in self.sending.get(replica, ()):
            message.wait()
        if replica in self.sending:
            self.sending[replica] = []

    def fetch(self, replica: ReplicaKey, tensors: Sequence[Tensor], peer: int) -> list[PendingMessage]:
        """Start to receive what the neighbour has of a micro-batch, in the order in which it was sent."""
        self.end(replica)
        return [self._receive(tensor, peer) for tensor in tensors]

    def take_part(self, action: ReceiveOffloaded | SendOffloaded, peer: int) -> None:
        """Receive what a stage on rank `peer` offloads to this one, or send it back."""
        do = self.receive if isinstance(action, ReceiveOffloaded) else self.send_back
        do((action.stage, action.source_device), action.micro_batch, peer)

    def receive(self, replica: ReplicaKey, micro_batch: int, peer: int) -> None:
        """Start to receive what a replica of another rank offloads to this one.

        Args:
            replica: stage and device.
            micro_batch: of the step.
            peer: the rank of the replica.
        """
        if replica not in self.sizes:
            (count,) = self._numbers(1, peer)
            self.sizes[replica] = tuple(self._numbers(count, peer))
        buffers = [self._empty(size) for size in self.sizes[replica]]
        self.stored[replica, micro_batch] = [self._receive(buffer, peer) for buffer in buffers]

    def send_back(self, replica: ReplicaKey, micro_batch: int, peer: int) -> None:
        """Start to send it back."""
        for message in self.sending_back.pop(replica, ()):
            message.wait()
        messages = self.stored.pop((replica, micro_batch))
        for message in messages:
            message.wait()
        self.sending_back[replica] = [self._send(message.rows, peer) for message in messages]

    def drain(self) -> None:
        """Wait until everything is sent, and forget the sizes."""
        for messages in (*self.sending.values(), *self.sending_back.values()):
            for message in messages:
                message.wait()
        self.forget()

    def forget(self) -> None:
        """Drop all messages and sizes."""
        for kept in (self.sizes, self.sending, self.stored, self.sending_back):
            kept.clear()

    def _numbers(self, count: int, peer: int) -> list[int]:
        numbers = torch.zeros(count, dtype=torch.int64, device=self.world.device)
        self._receive(numbers, peer).wait()
        return [int(number) for number in numbers.tolist()]

    def _empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.world.device)

    def _send(self, tensor: Tensor, peer: int) -> PendingMessage:
        with self.world.waiting_for(peer):
            return PendingMessage(self.world.p2p.send(tensor, peer, _TAG), tensor, peer, self.world)

    def _receive(self, tensor: Tensor, peer: int) -> PendingMessage:
        with self.world.waiting_for(peer):
            return PendingMessage(self.world.p2p.receive(tensor, peer, _TAG), tensor, peer, self.world)
