"""The state of an optimizer, of which each rank has a part, put together as one process would have it."""

from collections.abc import Collection
from typing import Any

from torch import nn
from torch.optim import Optimizer

from graphpipe.run.comm.world import World
from graphpipe.run.stage.tensor_tree import describe, leaves, map_tensors, rebuild


def gather_states(optimizer: Optimizer, owned: Collection[nn.Parameter], world: World) -> dict[int, dict[str, Any]]:
    """Return the state of every parameter by its number in the optimizer's `state_dict`; all ranks call this.

    Args:
        optimizer: of all parameters of the model, in the same groups on every rank.
        owned: parameters whose state this rank gives. Each has one such rank.
        world: this rank.

    Returns:
        The states on rank 0, with tensors on the host. Other ranks return those that they own.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    numbers = {id(each): n for n, each in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    own = {numbers[id(each)]: optimizer.state[each] for each in owned if each in optimizer.state}
    states: dict[int, dict[str, Any]] = {}
    for rank, listed in enumerate(world.exchange({str(n): describe(state) for n, state in own.items()})):
        for number, description in listed.items():
            tree = own[int(number)] if rank == world.rank else rebuild(description)
            tree = map_tensors(tree, lambda tensor: tensor.detach().to(world.device).contiguous())
            if world.size > 1:
                for leaf in leaves(tree):
                    world.broadcast(leaf, rank)
            if world.rank in (0, rank):
                states[int(number)] = map_tensors(tree, lambda tensor: tensor.cpu())
    return dict(sorted(states.items()))
