"""Ranks in the tests of point-to-point groups."""

import torch
import torch.distributed as dist

from graphpipe.run.comm.p2p_groups import P2PGroups
from graphpipe.run.comm.world import join

MESSAGES = 3


class RecordingGroup:
    """A group that records whether its messages go to a higher rank."""

    def __init__(self, group: dist.ProcessGroup, rank: int, upwards: list[bool]) -> None:
        self.group, self.rank, self.upwards = group, rank, upwards

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> dist.Work:
        """Send."""
        self.upwards.append(self.rank < target)
        return self.group.send(tensors, target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> dist.Work:
        """Receive."""
        self.upwards.append(source < self.rank)
        return self.group.recv(tensors, source, tag)


def exchange() -> dict[str, object]:
    """Send every other rank some messages of two tags at once, and return what arrived, and in which groups."""
    world = join("cpu", 30)
    others = [rank for rank in range(world.size) if rank != world.rank]
    own = [torch.tensor([100 * world.rank + number]) for number in range(MESSAGES)]
    come = {rank: [torch.zeros_like(each) for each in own] for rank in others}
    ways, upwards, downwards = world.p2p, list[bool](), list[bool]()
    up, down = (RecordingGroup(ways.up, world.rank, upwards), RecordingGroup(ways.down, world.rank, downwards))
    world.p2p_groups = P2PGroups(rank=world.rank, up=up, down=down)  # type: ignore[arg-type]
    works = [
        work
        for rank in others
        for number in range(MESSAGES)
        for work in (
            world.p2p.send(own[number], rank, tag=number % 2),
            world.p2p.receive(come[rank][number], rank, tag=number % 2),
        )
    ]
    for work in works:
        work.wait()
    apart = len({id(ways.up), id(ways.down), id(world.everyone)}) == 3 and all(upwards) and not any(downwards)
    world.p2p_groups = ways
    together = {rank: [torch.zeros_like(each) for each in own] for rank in others}
    works = [
        work
        for rank in others
        for tensors, sends in ((own, True), (together[rank], False))
        for work in world.p2p.together(tensors, rank, sends=sends)
    ]
    for work in works:
        work.wait()
    world.leave()
    numbers = [{str(rank): [int(each) for each in row] for rank, row in some.items()} for some in (come, together)]
    return {"come": numbers[0], "together": numbers[1], "apart": apart}
