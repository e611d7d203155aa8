"""From an engine's name to the engine of one stage on this rank."""

from collections.abc import Collection, Sequence

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.run.weights.replica_sync import Engine
from graphpipe.run.weights.sync_allreduce import AllReduce
from graphpipe.run.weights.sync_ddp import Ddp
from graphpipe.schedule import LoweredSchedule
from graphpipe.schedule.deadlock import standstill


def is_spread(placement: Placement, stage: int, program: StageProgram) -> bool:
    """True for a stage that trains, and whose replicas are on ranks of their own: the only ones an engine works for."""
    return len(set(placement.ranks(stage))) > 1 and any(each.requires_grad for each in _own(placement, stage, program))


def build_engine(
    name: str,
    stage: int,
    program: StageProgram,
    replicas: Sequence[StageProgram],
    placement: Placement,
    world: World,
) -> Engine:
    """Return the engine of a stage; the ranks that host the stage must call this alike.

    Args:
        name: one of `ENGINES`.
        stage: its position.
        program: with the user's module.
        replicas: the programs of its replicas here.
        placement: of the plan on the ranks.
        world: this rank.

    Raises:
        InvalidInput: FSDP cannot hold the stage's parameters.
    """
    ranks, title = placement.ranks(stage), placement.plan.stages[stage].name
    parameters = [_own(placement, stage, replica) for replica in replicas]
    if is_spread(placement, stage, program):
        if name == "ddp":
            return Ddp(world, ranks, parameters[0])
        if name == "fsdp2":
            from graphpipe.run.weights.sync_fsdp2 import Fsdp2  # which takes 0.1 s to import, and few need it

            return Fsdp2(world, ranks, replicas[0].module, program.module, parameters[0], title)
    return AllReduce(world=world, ranks=ranks, copies=[*zip(*parameters, strict=True)], stage=title)


def _own(placement: Placement, stage: int, program: StageProgram) -> list[nn.Parameter]:
    # Not those it shares with other stages, whose gradients go over the replicas of all of them.
    apart, names = placement.plan.apart(stage), program.parameter_names
    return [each for local, each in program.module.named_parameters() if names[local] not in apart]


def check_schedule(
    name: str, plan: Plan, split: Collection[int], placement: Placement, lowered: LoweredSchedule
) -> None:
    """Check that an engine works under a plan's schedule.

    Args:
        name: of the engine.
        plan: to be run.
        split: stages whose backward comes in two halves.
        placement: of the plan on the ranks.
        lowered: its schedule.

    Raises:
        InvalidInput: DDP would have to reduce in the halves of a backward; or, as it reduces inside of the last one,
            ranks would wait for each other for ever.
    """
    if name != "ddp":
        return
    spread = {stage for stage in range(len(plan.stages)) if len(set(placement.ranks(stage))) > 1}
    for stage in sorted(spread & {*split}):
        raise InvalidInput(
            f"schedule {plan.schedule} splits the backward of stage '{plan.stages[stage].name}', which has "
            f"{plan.stages[stage].degree} replicas: DDP reduces in the hooks of whole backwards",
            where="engine 'ddp'",
            remedy="Choose engine='allreduce' or 'fsdp2', or schedule 1f1b or gpipe.",
        )
    stuck = standstill(plan, lowered, inside=spread, messages_wait=False)
    if stuck:
        names = ", ".join(f"'{plan.cluster.devices[device].name}'" for device in sorted(stuck))
        raise InvalidInput(
            f"devices {names} would wait for each other for ever: DDP reduces inside of a stage's last backward, and "
            "another stage on one of these devices comes between",
            where="engine 'ddp'",
            remedy="Choose engine='allreduce' or 'fsdp2', or give the stages devices of their own.",
        )
