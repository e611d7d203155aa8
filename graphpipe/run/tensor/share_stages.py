"""Lets this rank compute its part of the stages whose replicas several ranks share."""

from collections.abc import Sequence

from graphpipe.costs.ranks.degrees import dividing_sequence
from graphpipe.errors import InvalidInput
from graphpipe.graph import SequenceModule, SubmoduleShards
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.team import ShardTeam
from graphpipe.model.split.submodules import Submodules
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.tensor.rank_team import AbsentTeam, RankTeam
from graphpipe.run.tensor.tensor_slices import check_tied, divided_parameters


def open_teams(placement: RankPlacement, world: World) -> None:
    """Open the groups of ranks that share a replica; every rank must call this."""
    for number, stage in enumerate(placement.plan.stages):
        for replica in range(stage.degree if stage.tensor > 1 else 0):
            world.open_group(placement.team(number, replica))


def share_stages(submodules: Submodules, placement: RankPlacement, world: World) -> None:
    """Put the parts of this rank in place of the submodules that its stages call. A single rank computes the whole.

    Args:
        submodules: of the user's model.
        placement: of the plan on the ranks.
        world: this rank.
    """
    if world.size == 1:
        return
    plan = placement.plan
    for number, stage in enumerate(plan.stages):
        if stage.tensor == 1:
            continue
        slot = placement.slot(number, world.rank)
        team: ShardTeam = AbsentTeam(stage.tensor, 0)
        if slot is not None:
            team = RankTeam(world, placement.team(number, slot.replica), slot.position)
        shards = _shards(plan, number, submodules)
        sequence, tied = _sequence(plan, number, shards), plan.tied_parameters(number)
        submodules.sharing[number] = SharedSubmodule(shards, team, submodules.slice_of, sequence, tied)


def _sequence(plan: Plan, stage: int, kept: Sequence[SubmoduleShards]) -> list[SequenceModule]:
    # What was tried with shared layers needs all of them.
    found = list[SequenceModule]()
    for op in plan.stages[stage].ops:
        shards = plan.graph[op].shards
        if shards is None or shards.sequence is None or not shards.divides_sequence(plan.stages[stage].tensor):
            continue
        whole = [each.submodule for each in shards.submodules if each not in kept]
        found += [
            each
            for each in shards.sequence.submodules
            if not any(path == each.submodule or path.startswith(f"{each.submodule}.") for path in whole)
        ]
    return found


def _shards(plan: Plan, stage: int, submodules: Submodules) -> list[SubmoduleShards]:
    # What is divided in this plan: shared parameters may have to stay whole, and with them the layers that read them.
    divided, found = divided_parameters(plan, stage), list[SubmoduleShards]()
    for op in plan.stages[stage].ops:
        shards = plan.graph[op].shards
        for each in shards.submodules if shards is not None else ():
            held = {submodules.name_of(name) for name in submodules.parameters_of(each.submodule)}
            listed = {name for name, _ in shards.parameters} if shards is not None else set[str]()
            if (held & listed) <= divided:
                found.append(each)
    return found


def check_tensor(plan: Plan, engine: str) -> None:
    """Check that the stages whose replicas several ranks share can be run so.

    Args:
        plan: to be run.
        engine: name of the replica synchronisation.

    Raises:
        InvalidInput: names the stage and what does not go together.
    """
    for stage in plan.stages:
        if stage.tensor == 1:
            continue
        problem, remedy = "", ""
        if stage.state not in ("whole", "optimizer"):
            problem = "replicas shard weights and gradients"
            remedy = "Plan without sharding, or shard only the optimizer's state."
        elif engine != "allreduce" and stage.degree > 1:
            problem = f"engine '{engine}' sums gradients over replicas"
            remedy = "Choose engine='allreduce'."
        elif stage.regions and any(region.backend != "eager" for region in stage.regions):
            problem, remedy = f"backend {stage.regions[0].backend} runs operators", "Run them in PyTorch."
        elif plan.weights != "flush" and dividing_sequence(plan.graph, stage.ops, stage.tensor):
            problem = f"they divide the sequence, and the weight policy is '{plan.weights}'"
            remedy = "Choose the weight policy 'flush', or plan without sequence_parallel."
        if problem:
            raise InvalidInput(
                f"{stage.tensor} devices share each replica, and {problem}",
                where=f"stage '{stage.name}'",
                remedy=remedy,
            )
    if plan.trains:
        check_tied(plan)
