"""Which of a rank's parameters go to one optimizer: all of them, unless some are in shards or share out their state."""

import torch

from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.worker import Worker
from graphpipe.run.weights.sharded_tensors import is_sharded
from graphpipe.run.weights.tied_parameters import apart
from graphpipe.run.weights.weight_update import Portion

Key = tuple[tuple[int, ...], torch.dtype | None]
"""The ranks that share parameters, none if this rank updates them alone; and their dtype, where it matters."""


def portions(worker: Worker[StageReplica], *, share_out: bool) -> list[Portion]:
    """Return the portions of a rank's trainable parameters, the same on all ranks that share one.

    Args:
        worker: of this rank.
        share_out: whether replicas on ranks of their own share out the optimizer's state. Torch's optimizer for this
            takes parameters of one dtype. What stages share is updated, and its state kept, by every holder.
    """
    found: dict[Key, Portion] = {}
    shared, seen = apart(worker.shared), set[int]()
    for leader in worker.leaders():
        ranks = worker.placement.ranks(leader.seat.stage)
        spread = share_out and len(set(ranks)) > 1
        for parameter in leader.parameters:
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            key: Key = ((), None)
            if is_sharded(parameter):
                key = (ranks, None)
            elif spread and id(parameter) not in shared:
                key = (ranks, parameter.dtype)
            if key not in found:
                found[key] = Portion(parameters=[], group=worker.world.group(ranks) if key[1] else None)
            found[key].parameters.append(parameter)
    return [*found.values()]
