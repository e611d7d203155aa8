"""Groups a rank's parameters by optimizer: one group for each class, unless some are sharded or their state is."""

from collections.abc import Collection

import torch

from graphpipe.run.weights.sharded_tensors import is_sharded
from graphpipe.run.weights.tied_parameters import tied_parameter_ids
from graphpipe.run.weights.weight_update import OptimizerFactory, OptimizerGroup, kind_of
from graphpipe.run.worker.worker import StageWorker

Key = tuple[tuple[int, ...], torch.dtype | None, str]
"""The ranks that share the parameters, empty if only this rank updates them; the dtype, where it matters; and the class
of optimizers."""


def optimizer_groups(
    worker: StageWorker, optimizer: OptimizerFactory | None, *, sharded: Collection[int]
) -> list[OptimizerGroup]:
    """Return the groups of a rank's trainable parameters, the same on all ranks that share a group.

    Args:
        worker: of this rank.
        optimizer: of the pipeline, which may have several classes.
        sharded: stages whose optimizer's state is sharded over replicas on different ranks. Torch's optimizer for this
            takes parameters of one dtype. Tied parameters are updated, with their whole state, on every rank that has
            them.
    """
    groups: dict[Key, OptimizerGroup] = {}
    shared, seen = tied_parameter_ids(worker.tied_parameters), set[int]()
    for leader in worker.leaders():
        ranks = worker.placement.ranks(leader.slot.stage, leader.slot.position)
        spread = leader.slot.stage in sharded and len(set(ranks)) > 1
        for name, parameter in leader.trained():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            key: Key = ((), None, kind := kind_of(optimizer, name))
            if is_sharded(parameter):
                key = (ranks, None, kind)
            elif spread and id(parameter) not in shared:
                key = (ranks, parameter.dtype, kind)
            if key not in groups:
                groups[key] = OptimizerGroup(process_group=worker.world.group(ranks) if key[1] else None)
            groups[key].named.append((name, parameter))
    return [*groups.values()]
