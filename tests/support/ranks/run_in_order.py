"""What ranks do where messages have no tags: gloo, but asked for nothing that NCCL does not offer."""

from collections.abc import Callable
from typing import Any

import run_scenarios
import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.run.comm.messages import Channels, Message
from graphpipe.run.comm.p2p_groups import Ways
from graphpipe.run.comm.warm_up_pairs import rounds, warm_up
from graphpipe.run.comm.world import World, join


def train(cut: str, options: dict[str, Any], blocking: bool) -> dict[str, Any]:
    """Train as over NCCL; add what this rank posted in all.

    `blocking`: every message keeps both its ranks until it is through, and so nothing overtakes anything.
    """
    without_tags()
    if blocking:
        wait_for_every_message()
    posted = record()
    return run_scenarios.train(cut, 2, options) | {"posted": posted}


def without_tags() -> None:
    """Let the runtime believe that its messages are told apart by their order alone."""
    World.in_order = property(lambda world: True)  # type: ignore[method-assign,assignment]


def wait_for_every_message() -> None:
    """Let sends and receives end only with their other side."""
    send, receive = Channels.send, Channels.receive

    def send_and_wait(channels: Channels, *given: Any) -> None:
        send(channels, *given)
        channels.drain()

    def receive_and_wait(channels: Channels, rows: Tensor, peer: int) -> Message:
        message = receive(channels, rows, peer)
        message.wait()
        return message

    Channels.send, Channels.receive = send_and_wait, receive_and_wait  # type: ignore[method-assign]


def record() -> list[str]:
    """Return a list that every call of torch.distributed will be noted in: what, with whom, how much."""
    posted: list[str] = []

    def note(name: str, call: Callable[..., Any], describe: Callable[..., str]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            ranks = dist.get_process_group_ranks(options["group"])
            posted.append(f"{name} {describe(*arguments)} in {ranks}")
            return call(*arguments, **options)

        return noted

    def rows(tensor: Tensor) -> str:
        return f"{tensor.dtype} {list(tensor.shape)}"

    def note_message(call: Callable[..., Any], ends: Callable[[int, int], tuple[int, int]]) -> Callable[..., Any]:
        def noted(ways: Ways, tensor: Tensor, peer: int, tag: int = 0) -> Any:
            assert not tag, "a message has a tag"
            source, target = ends(ways.rank, peer)
            ranks = dist.get_process_group_ranks(ways.up if source < target else ways.down)
            posted.append(f"message {source}>{target} {rows(tensor)} in {ranks}")
            return call(ways, tensor, peer, tag)

        return noted

    Ways.send = note_message(Ways.send, lambda own, peer: (own, peer))  # type: ignore[method-assign]
    Ways.receive = note_message(Ways.receive, lambda own, peer: (peer, own))  # type: ignore[method-assign]
    dist.all_reduce = note("sum", dist.all_reduce, rows)
    dist.broadcast = note("broadcast", dist.broadcast, lambda tensor, source: f"{source} {rows(tensor)}")
    dist.all_gather = note("gather", dist.all_gather, lambda tensors, tensor: rows(tensor))
    return posted


def greet(pairs: list[tuple[int, int]]) -> list[str]:
    """Let these pairs of ranks talk for the first time."""
    posted = record()
    world = join(torch.device("cpu"), 20.0)
    warm_up(world, [pair for one in rounds(pairs) for pair in one])
    world.leave()
    return posted
