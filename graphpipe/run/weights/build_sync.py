"""From the name of a synchronisation to the object that synchronises one stage on this rank."""

from collections.abc import Sequence

from torch import nn

from graphpipe.graph import parameter_of
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.weights.registry import find_sync
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas
from graphpipe.run.weights.sync_allreduce import AllReduce


def build_sync(
    name: str,
    stage: int,
    program: StageProgram,
    replicas: Sequence[StageProgram],
    placement: RankPlacement,
    world: World,
) -> ReplicaSync:
    """Return the synchronisation of a stage. The ranks that host the stage must call this in the same order.

    Args:
        name: of the synchronisation.
        stage: its position.
        program: with the user's module.
        replicas: the programs of its replicas on this rank.
        placement: of the plan on the ranks.
        world: this rank.

    Raises:
        InvalidInput: the synchronisation cannot hold the stage's parameters.
    """
    stage_replicas = StageReplicas(
        world=world,
        ranks=placement.ranks(stage, placement.position(stage, world.rank)),
        stage=placement.plan.stages[stage].name,
        original=program.module,
        modules=tuple(replica.module for replica in replicas),
        parameters=tuple(_own(placement, stage, replica) for replica in replicas),
    )
    sync = find_sync(name)
    if trains_on_several_ranks(placement, stage, program) or (sync.traits.local_replicas and not stage_replicas.spread):
        return sync(stage_replicas)
    return AllReduce(stage_replicas)


def holds_shards(name: str, placement: RankPlacement, stage: int, program: StageProgram) -> bool:
    """True if the parameters of a stage become shards, so its replica must be a copy of the user's module."""
    return find_sync(name).traits.shards_parameters and trains_on_several_ranks(placement, stage, program)


def trains_on_several_ranks(placement: RankPlacement, stage: int, program: StageProgram) -> bool:
    """True for a stage with trainable parameters and replicas on different ranks."""
    spread = len(set(placement.ranks(stage))) > 1
    return spread and any(parameter.requires_grad for parameter in _own(placement, stage, program))


def _own(placement: RankPlacement, stage: int, program: StageProgram) -> tuple[nn.Parameter, ...]:
    # Tied parameters are left out, because their gradients are summed over the replicas of all stages that share them.
    tied, names = placement.plan.tied_parameters(stage), program.parameter_names
    named = program.module.named_parameters()
    return tuple(parameter for local, parameter in named if parameter_of(names[local]) not in tied)
