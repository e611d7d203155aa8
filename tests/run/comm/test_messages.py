"""A sent tensor is kept until the peer has it: gloo reads it until then."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.world import World
from graphpipe.schedule import Transfer


@dataclass
class Sending:
    """A send in transit."""

    waited: bool = False

    def wait(self) -> None:
        self.waited = True


@dataclass
class Network:
    """A world whose sends only end when they are waited for."""

    sent: list[Sending] = field(default_factory=list[Sending])
    peers: list[int] = field(default_factory=list[int])
    in_order: bool = True

    @property
    def p2p(self) -> "Network":
        return self

    def send(self, rows: torch.Tensor, peer: int) -> Sending:
        assert rows.is_contiguous()
        self.sent.append(Sending())
        return self.sent[-1]

    def together(self, tensors: list[torch.Tensor], peer: int, *, sends: bool) -> list[Sending]:
        assert sends
        self.sent.append(Sending())
        return self.sent[-1:]

    @contextmanager
    def waiting_for(self, peer: int) -> Generator[None]:
        self.peers.append(peer)
        yield


def start(*peers: int) -> tuple[RankMessages, Network, list[Transfer]]:
    network = Network()
    messages = RankMessages(cast(World, network))
    transfers = [cast(Transfer, object()) for _ in peers]
    for peer, transfer in zip(peers, transfers, strict=True):
        messages.send([torch.zeros(4)], peer, transfer)
    return messages, network, transfers


def test_a_drain_waits_for_every_message_sent() -> None:
    messages, network, _ = start(1, 2, 2)
    assert not any(each.waited for each in network.sent)
    messages.drain()
    assert all(each.waited for each in network.sent)
    assert network.peers == [1, 2, 2] * 2  # the peer is named while a send starts, and while it is waited for
    assert not messages.sending


@pytest.mark.parametrize(("in_order", "count"), [(True, 1), (False, 2)])
def test_the_values_of_a_transfer_are_one_message_for_nccl(in_order: bool, count: int) -> None:
    """Each value was a call of its own, for which NCCL starts a kernel."""
    network, transfer = Network(in_order=in_order), cast(Transfer, object())
    messages = RankMessages(cast(World, network))
    messages.send([torch.zeros(4), torch.zeros(3)], 1, transfer)
    assert len(network.sent) == count
    assert [it.rows.shape for it in messages.sending[id(transfer)]] == [(4,), (3,)]
    messages.release([transfer])
    assert all(each.waited for each in network.sent)


def test_what_was_sent_is_freed_only_after_it_was_waited_for() -> None:
    messages, network, transfers = start(1, 2)
    messages.release([transfers[1], cast(Any, object())])
    assert [each.waited for each in network.sent] == [False, True]
    assert [*messages.sending] == [id(transfers[0])]
    messages.drain()
    assert [each.waited for each in network.sent] == [True, True]


def test_the_tensor_in_transit_is_held() -> None:
    messages, _, (transfer,) = start(1)
    (pending,) = messages.sending[id(transfer)]
    assert pending.rows.shape == (4,)
    assert pending.work is not None
    messages.drain()
    assert pending.work is None
