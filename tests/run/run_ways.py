"""What ranks do in the tests of the ways of messages."""

import torch
import torch.distributed as dist

from graphpipe.run.world import join

MESSAGES = 3


def talk() -> dict[str, object]:
    """Send every other rank some messages of two tags at once, and return what came, and in which groups."""
    world = join("cpu", 30)
    others = [rank for rank in range(world.size) if rank != world.rank]
    own = [torch.tensor([100 * world.rank + number]) for number in range(MESSAGES)]
    come = {rank: [torch.zeros_like(each) for each in own] for rank in others}
    groups: dict[str, list[dist.ProcessGroup]] = {"up": [], "down": []}

    def noting(call):
        def noted(tensor, peer, group, tag):
            sender, receiver = (world.rank, peer) if call is isend else (peer, world.rank)
            groups["up" if sender < receiver else "down"].append(group)
            return call(tensor, peer, group=group, tag=tag)

        return noted

    isend, irecv = dist.isend, dist.irecv
    dist.isend, dist.irecv = noting(isend), noting(irecv)
    works = [
        work
        for rank in others
        for number in range(MESSAGES)
        for work in (
            world.messages.send(own[number], rank, tag=number % 2),
            world.messages.receive(come[rank][number], rank, tag=number % 2),
        )
    ]
    for work in works:
        work.wait()
    kinds = {id(group) for group in groups["up"]}, {id(group) for group in groups["down"]}
    apart = not kinds[0] & kinds[1] and id(world.everyone) not in kinds[0] | kinds[1]
    world.leave()
    return {"come": {str(rank): [int(each) for each in row] for rank, row in come.items()}, "apart": apart}
