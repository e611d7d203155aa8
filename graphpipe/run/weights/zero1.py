"""ZeRO-1: each replica keeps the optimizer's state of some parameters, and updates them for all replicas.

Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020). It wraps the
user's optimizer in torch's ZeroRedundancyOptimizer, and never calls its `consolidate_state_dict`, which unpickles data
from peers.
"""

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch.distributed as dist
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


def shard_optimizer_state(optimizer: Optimizer, group: dist.ProcessGroup) -> "ZeroRedundancyOptimizer":
    """Return an optimizer equal to the given one whose state and work are sharded over the ranks of a group.

    All ranks must call this, with an optimizer of the same parameters (of one dtype) and options, without state.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes 0.2 s, and few runs need it

    def part(groups: list[dict[str, Any]], **_: Any) -> Optimizer:
        # A copy, because the arguments of the constructor are unknown. The groups hold all options. `copy.copy` would
        # leave out what the class adds to torch's attributes.
        own = object.__new__(type(optimizer))
        vars(own).update(vars(optimizer))
        own.param_groups, own.state = groups, defaultdict(dict)
        return own

    groups = [dict(options) for options in optimizer.param_groups]
    return ZeroRedundancyOptimizer(groups, cast("type[Optimizer]", part), process_group=group)


def local_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that has this rank's state, with the parameters that it updates in its groups."""
    return cast(Optimizer, optimizer.optim) if _is_sharded(optimizer) else optimizer


def load(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict of all parameter groups, with state only for the parameters of `local_optimizer`."""
    optimizer.load_state_dict(state)
    if _is_sharded(optimizer):
        optimizer.state.clear()  # the local optimizer has it


def _is_sharded(optimizer: Optimizer) -> "TypeGuard[ZeroRedundancyOptimizer]":
    # If torch's module was never imported, no optimizer is sharded.
    module = sys.modules.get("torch.distributed.optim")
    return module is not None and isinstance(optimizer, module.ZeroRedundancyOptimizer)
