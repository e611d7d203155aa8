"""From a plan to a worker: every replica of this rank made, placed and given the parameters of replica 0."""

from collections.abc import Collection, Mapping, Sequence

from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.comm import broadcast as share
from graphpipe.run.comm.messages import Channels
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import Lanes
from graphpipe.run.faults.status_reporter import Watch
from graphpipe.run.stage.receive_buffers import Inbox
from graphpipe.run.stage.recompute import Forgetful, keep_regions
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.recorder import Recorder
from graphpipe.run.step.worker import Worker
from graphpipe.run.weights.build_sync import build_engine, is_spread
from graphpipe.run.weights.tied_parameters import SharedParameters, shared_parameters
from graphpipe.schedule import Task


def build_worker(
    plan: Plan,
    programs: Sequence[StageProgram],
    placement: Placement,
    world: World,
    watch: Watch,
    *,
    split: Collection[int],
    lasts: Mapping[tuple[int, int], Task],
    engine: str,
    precision: str,
    record: bool,
    debug: bool,
) -> Worker[StageReplica]:
    """Return this rank's worker; every rank must call this. A rank's first replica of a stage is the user's module.

    Args:
        plan: says what is where.
        programs: by stage.
        placement: of the plan on the ranks.
        world: this rank.
        watch: of this rank.
        split: stages whose backward comes in two halves.
        lasts: the last backward of a step, or weight half, by stage and device.
        engine: for stages whose replicas are on several ranks (see `Engine`).
        precision: of forwards and losses.
        record: measure when everything happens.
        debug: assert that no replica has more samples in flight than the plan says.

    Raises:
        InvalidInput: the engine cannot work for a stage.
    """
    open_groups(plan, placement, world)
    hosted = _programs(programs, placement, world, engine)
    engines = {
        stage: build_engine(engine, stage, programs[stage], [*by_device.values()], placement, world)
        for stage, by_device in hosted.items()
    }
    replicas: dict[tuple[int, int], StageReplica] = {}
    for seat in placement.seats(world.rank):
        program, stage = hosted[seat.stage][seat.device], plan.stages[seat.stage]
        keep_regions(program, stage, world.device)
        replicas[seat.stage, seat.device] = StageReplica(
            seat=seat,
            stage_name=stage.name,
            program=program,
            device=world.device,
            inbox=Inbox(world.device),
            watch=watch,
            parameters=tuple(program.module.parameters()),
            engine=engines[seat.stage],
            last=lasts.get((seat.stage, seat.device)),
            precision=precision,
            forgetful=Forgetful(program.module) if stage.recompute == "full" else None,
            splits=seat.stage in split,
            room=stage.in_flight / stage.degree if debug else None,
            kept=plan.costs.kept_for_weight_gradient,
        )
    worker = Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        engines=engines,
        channels=Channels(world),
        lanes=Lanes.of(world.device, plan),
        recorder=Recorder(world=world, on=record, stages=tuple(stage.name for stage in plan.stages)),
        watch=watch,
    )
    worker.shared = _shared(worker)
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


def _programs(
    programs: Sequence[StageProgram], placement: Placement, world: World, engine: str
) -> dict[int, dict[int, StageProgram]]:
    """Return the program of every replica here, by stage and device, all with the weights of replica 0.

    The first of a stage is the user's own, and the others are copies; all are where FSDP will cut them up.
    """
    hosted: dict[int, dict[int, StageProgram]] = {}
    for seat in placement.seats(world.rank):
        user, ranks = programs[seat.stage], placement.ranks(seat.stage)
        by_device = hosted.setdefault(seat.stage, {})
        copied = engine == "fsdp2" and is_spread(placement, seat.stage, user)
        if not by_device:
            if not copied:
                user.module.to(world.device)
            if len(set(ranks)) > 1:
                share.broadcast(world, share.state(user.module), ranks[0], ranks)
        program = user.replicate() if copied or by_device else user
        program.module.to(world.device)
        by_device[seat.device] = program
    return hosted


def match_modes(worker: Worker[StageReplica], programs: Sequence[StageProgram]) -> None:
    """Put every copy of a stage into the modes that the user has set on their own module."""
    for replica in worker.replicas.values():
        user = programs[replica.seat.stage].module
        if replica.module is not user:
            share.copy_modes(user, replica.module)


def align_buffers(worker: Worker[StageReplica], stage: int) -> None:
    """Give all replicas of a stage the buffers of its replica 0, and its parameters to those in the same process."""
    ranks = worker.placement.ranks(stage)
    held = worker.of_stage(stage)
    if not held or len(ranks) == 1:
        return
    module = held[0].module
    if len(set(ranks)) > 1:
        share.broadcast(worker.world, module.buffers(), ranks[0], ranks)
    for follower in held[1:]:
        share.copy(module, follower.module)


def open_groups(plan: Plan, placement: Placement, world: World) -> None:
    """Make the groups that gradients are reduced in, of a stage or of several that share; every rank must call this."""
    for stage in range(len(plan.stages)):
        world.open_group(placement.ranks(stage))
    for exchange in plan.exchanges:
        world.open_group([rank for stage in exchange.stages for rank in placement.ranks(stage)])
