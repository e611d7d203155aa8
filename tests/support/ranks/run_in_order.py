"""Ranks whose messages do not have tags: gloo, used only as NCCL could be."""

from collections.abc import Callable, Sequence
from typing import Any

import run_scenarios
import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.messages import PendingMessage, RankMessages
from graphpipe.run.comm.p2p_groups import P2PGroups
from graphpipe.run.comm.warm_up_pairs import disjoint_rounds, warm_up
from graphpipe.run.comm.world import World, join

CONTROL_TAGS = (1, 2)
"""Of the sums of losses and the comparison of mini-batches."""


def train(cut: str, options: dict[str, Any], blocking: bool) -> dict[str, Any]:
    """Train as over NCCL, and return also the list of everything this rank posted.

    `blocking`: every message blocks both its ranks until it has arrived, so that messages stay in order.
    """
    without_tags()
    if blocking:
        wait_for_every_message()
    posted = record()
    return run_scenarios.train(cut, 2, options) | {"posted": posted}


def without_tags() -> None:
    """Make the runtime assume that messages are matched only by their order."""
    World.in_order = property(lambda world: True)  # type: ignore[method-assign,assignment]


def wait_for_every_message() -> None:
    """Make sends and receives block until the peer has posted its side."""
    send, receive = RankMessages.send, RankMessages.receive

    def send_and_wait(messages: RankMessages, *given: Any) -> None:
        send(messages, *given)
        messages.drain()

    def receive_and_wait(messages: RankMessages, values: Sequence[Tensor], peer: int) -> list[PendingMessage]:
        coming = receive(messages, values, peer)
        for message in coming:
            message.wait()
        return coming

    RankMessages.send, RankMessages.receive = send_and_wait, receive_and_wait  # type: ignore[method-assign]


def record() -> list[str]:
    """Return a list to which every call of torch.distributed is added: its name, ranks and rows."""
    posted: list[str] = []

    def note(name: str, call: Callable[..., Any], describe: Callable[..., str]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            ranks = dist.get_process_group_ranks(options["group"])
            posted.append(f"{name} {describe(*arguments)} in {ranks}")
            return call(*arguments, **options)

        return noted

    def rows(tensor: Tensor) -> str:
        return f"{tensor.dtype} {list(tensor.shape)}"

    together = P2PGroups.together

    def noted_together(
        ways: P2PGroups, tensors: Sequence[Tensor], peer: int, tag: int = 0, *, sends: bool
    ) -> list[dist.Work]:
        if tag not in CONTROL_TAGS:  # These go over gloo, also beside NCCL.
            assert not tag, "a message has a tag"
            source, target = (ways.rank, peer) if sends else (peer, ways.rank)
            ranks = dist.get_process_group_ranks(ways.pairs[source, target])
            posted.extend(f"message {source}>{target} {rows(tensor)} in {ranks}" for tensor in tensors)
        return together(ways, tensors, peer, tag, sends=sends)

    P2PGroups.together = noted_together  # type: ignore[method-assign]
    dist.all_reduce = note("sum", dist.all_reduce, rows)
    dist.broadcast = note("broadcast", dist.broadcast, lambda tensor, source: f"{source} {rows(tensor)}")
    dist.all_gather = note("gather", dist.all_gather, lambda tensors, tensor: rows(tensor))
    return posted


def first_messages(pairs: list[tuple[int, int]]) -> list[str]:
    """Make the first contact of these pairs of ranks."""
    posted = record()
    world = join(torch.device("cpu"), 20.0)
    world.open_pairs(pairs)
    warm_up(world, [pair for one in disjoint_rounds(pairs) for pair in one])
    world.leave()
    return posted
