"""From a plan to a worker: every replica of this rank made, placed and given the parameters of replica 0."""

from collections.abc import Collection, Sequence

from torch import nn

from graphpipe.model.program import StageProgram
from graphpipe.plan import Plan
from graphpipe.run import share
from graphpipe.run.channels import Channels
from graphpipe.run.inbox import Inbox
from graphpipe.run.placement import Placement
from graphpipe.run.recompute import Forgetful, keep_regions
from graphpipe.run.recorder import Recorder
from graphpipe.run.replica import StageReplica
from graphpipe.run.shared import SharedParameters, shared_parameters
from graphpipe.run.values import EdgeSpecs
from graphpipe.run.watch import Watch
from graphpipe.run.worker import Worker
from graphpipe.run.world import World


def build_worker(
    plan: Plan,
    programs: Sequence[StageProgram],
    specs: EdgeSpecs,
    placement: Placement,
    world: World,
    watch: Watch,
    *,
    split: Collection[int],
    record: bool,
    debug: bool,
) -> Worker[StageReplica]:
    """Return this rank's worker; every rank must call this. A rank's first replica of a stage is the user's module.

    Args:
        plan: says what is where.
        programs: by stage.
        specs: the values on every edge.
        placement: of the plan on the ranks.
        world: this rank.
        watch: of this rank.
        split: stages whose backward comes in two halves.
        record: measure when everything happens.
        debug: assert that no replica has more samples in flight than the plan says.
    """
    replicas: dict[tuple[int, int], StageReplica] = {}
    leading: set[int] = set()
    for seat in placement.seats(world.rank):
        program = programs[seat.stage] if seat.stage not in leading else programs[seat.stage].replicate()
        leading.add(seat.stage)
        program.module.to(world.device)
        stage = plan.stages[seat.stage]
        keep_regions(program, stage, world.device)
        replicas[seat.stage, seat.device] = StageReplica(
            seat=seat,
            stage_name=stage.name,
            program=program,
            device=world.device,
            inbox=Inbox(world.device),
            watch=watch,
            parameters=tuple(program.module.parameters()),
            forgetful=Forgetful(program.module) if stage.recompute == "full" else None,
            splits=seat.stage in split,
            room=stage.in_flight / stage.degree if debug else None,
            kept=plan.costs.kept_for_weight_gradient,
        )
    worker = Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        specs=specs,
        channels=Channels(world),
        recorder=Recorder(world=world, on=record, stages=tuple(stage.name for stage in plan.stages)),
        watch=watch,
    )
    worker.shared = _shared(worker)
    open_groups(plan, placement, world)
    for stage in range(len(plan.stages)):
        align(worker, stage, parameters=True)
    for each in worker.shared:
        each.align(world)
    return worker


def _shared(worker: Worker[StageReplica]) -> list[SharedParameters]:
    held: dict[tuple[int, int], dict[str, nn.Parameter]] = {}
    for replica in worker.replicas.values():
        names = replica.program.parameter_names
        named = {names[local]: parameter for local, parameter in replica.module.named_parameters()}
        held[replica.seat.stage, replica.seat.replica] = named
    leaders = {(leader.seat.stage, leader.seat.replica) for leader in worker.leaders()}
    return shared_parameters(worker.placement.plan, worker.placement, held, leaders)


def match_modes(worker: Worker[StageReplica]) -> None:
    """Put every further replica of a stage into the modes that the user has set on the first."""
    for leader in worker.leaders():
        for follower in worker.of_stage(leader.seat.stage)[1:]:
            share.copy_modes(leader.module, follower.module)


def align(worker: Worker[StageReplica], stage: int, *, parameters: bool) -> None:
    """Give all replicas of a stage the buffers (and parameters) of its replica 0."""
    ranks = worker.placement.ranks(stage)
    held = worker.of_stage(stage)
    if not held or len(ranks) == 1:
        return
    module = held[0].module
    if len(set(ranks)) > 1:
        share.broadcast(worker.world, share.state(module) if parameters else module.buffers(), ranks[0], ranks)
    for follower in held[1:]:
        share.copy(module, follower.module)


def open_groups(plan: Plan, placement: Placement, world: World) -> None:
    """Make the groups that gradients are reduced in, of a stage or of several that share; every rank must call this."""
    for stage in range(len(plan.stages)):
        world.open_group(placement.ranks(stage))
    for exchange in plan.exchanges:
        world.open_group([rank for stage in exchange.stages for rank in placement.ranks(stage)])
