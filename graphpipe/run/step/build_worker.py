"""Builds the worker of a rank: every replica is built, placed and given the parameters of replica 0."""

from collections.abc import Mapping, Sequence

from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan, Stage
from graphpipe.plans.device_memory import between_halves
from graphpipe.run.comm.broadcast import broadcast_tensors, copy_modes, state_tensors
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.offload_messages import OffloadMessages
from graphpipe.run.comm.rank_placement import RankPlacement, ReplicaSlot
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.faults.rank_status import ALL_PEERS
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.offload import Neighbour, Offloading
from graphpipe.run.stage.recompute import Recomputation, set_up_regions
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.tensor.share_stages import open_teams
from graphpipe.run.weights.build_sync import build_sync, holds_shards
from graphpipe.run.weights.parameter_slices import own_slices
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.run.weights.tied_parameters import TiedParameters, find_tied_parameters, tied_ranks
from graphpipe.run.worker.recorder import Recorder
from graphpipe.run.worker.worker import StageWorker, Worker
from graphpipe.schedule import LoweredSchedule, Schedule


def build_worker(
    programs: Sequence[StageProgram],
    placement: RankPlacement,
    world: World,
    monitor: StatusReporter,
    schedule: Schedule,
    lowered: LoweredSchedule,
    options: PipelineOptions,
    engines: Sequence[str],
) -> StageWorker:
    """Return this rank's worker; every rank must call this. A rank's first replica of a stage is the user's module.

    Args:
        programs: by stage.
        placement: of the plan on the ranks.
        world: this rank.
        monitor: of this rank.
        schedule: of the plan.
        lowered: the same with its messages.
        options: of the pipeline.
        engines: name of the synchronisation of each stage.

    Raises:
        InvalidInput: the engine does not work for a stage.
    """
    plan = placement.plan
    open_groups(plan, placement, world)
    hosted = _replicate_programs(programs, placement, world, engines)
    syncs = {
        stage: build_sync(engines[stage], stage, programs[stage], [*by_device.values()], placement, world)
        for stage, by_device in hosted.items()
    }
    streams = StageStreams.of(world.device, plan)
    offloads = OffloadMessages(world)
    replicas = _replicas(hosted, syncs, placement, world, monitor, schedule, lowered, options, streams, offloads)
    worker = Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        new_run=StageReplicaRun,
        syncs=syncs,
        messages=RankMessages(world),
        offloads=offloads,
        streams=streams,
        recorder=Recorder(world=world, on=options.record, stages=tuple(stage.name for stage in plan.stages)),
        monitor=monitor,
    )
    worker.tied_parameters = _tied_parameters(worker)
    for tied in worker.tied_parameters:
        tied.align(world)
    return worker


def _replicas(
    programs: Mapping[int, Mapping[int, StageProgram]],
    syncs: Mapping[int, ReplicaSync],
    placement: RankPlacement,
    world: World,
    monitor: StatusReporter,
    schedule: Schedule,
    lowered: LoweredSchedule,
    options: PipelineOptions,
    streams: StageStreams,
    offloads: OffloadMessages,
) -> dict[tuple[int, int], StageReplica]:
    """Return the replicas of this rank, by stage and device."""
    plan, lasts = placement.plan, lowered.last_backwards()
    replicas: dict[tuple[int, int], StageReplica] = {}
    for slot in placement.slots(world.rank):
        program, stage = programs[slot.stage][slot.device], plan.stages[slot.stage]
        offloading = None
        if stage.offload:
            copying, computing = streams.host(slot.device), streams.tasks(slot.device)
            neighbour = _neighbour(plan.stages[slot.stage], slot, placement, world, offloads)
            offloading = Offloading(stage.name, world.device, copying, computing, neighbour)
        set_up_regions(program, stage, world.device, offloading)
        splits = slot.stage in schedule.split_stages
        replicas[slot.stage, slot.device] = StageReplica(
            slot=slot,
            stage_name=stage.name,
            program=program,
            device=world.device,
            monitor=monitor,
            parameters=tuple(program.module.parameters()),
            sync=syncs[slot.stage],
            last=lasts.get((slot.stage, slot.device)),
            precision=options.precision,
            recomputation=Recomputation(program.module) if stage.recompute == "full" else None,
            offloading=offloading,
            splits=splits,
            in_flight_limit=stage.in_flight / stage.degree if options.debug else None,
            kept_share=between_halves(plan.cost_model, stage).counted_share if splits else 1.0,
        )
    return replicas


def _neighbour(
    stage: Stage, slot: ReplicaSlot, placement: RankPlacement, world: World, offloads: OffloadMessages
) -> Neighbour | None:
    """Return where a replica offloads to, if that is another device."""
    if (device := stage.neighbour(slot.device)) is None:
        return None
    peer = placement.rank_of[device]
    return Neighbour(peer, None if peer == world.rank else offloads, (slot.stage, slot.device))


def _tied_parameters(worker: StageWorker) -> list[TiedParameters]:
    held: dict[tuple[int, int], dict[str, nn.Parameter]] = {}
    for replica in worker.replicas.values():
        names = replica.program.parameter_names
        named = {names[local]: parameter for local, parameter in replica.module.named_parameters()}
        held[replica.slot.stage, replica.slot.replica] = named
    leaders = {(leader.slot.stage, leader.slot.replica) for leader in worker.leaders()}
    return find_tied_parameters(worker.placement.plan, worker.placement, held, leaders, worker.world.rank)


def _replicate_programs(
    programs: Sequence[StageProgram], placement: RankPlacement, world: World, engines: Sequence[str]
) -> dict[int, dict[int, StageProgram]]:
    """Return the program of every replica here, by stage and device, all with the weights of replica 0.

    The first of a stage is the user's own, and the others are copies. Where the replicas hold shards, all are copies.
    """
    hosted: dict[int, dict[int, StageProgram]] = {}
    for slot in placement.slots(world.rank):
        user, ranks = programs[slot.stage], placement.ranks(slot.stage, slot.position)
        by_device = hosted.setdefault(slot.stage, {})
        copied = holds_shards(engines[slot.stage], placement, slot.stage, user)
        if not by_device:
            if not copied:
                user.module.to(world.device)
            if len(set(ranks)) > 1:
                broadcast_tensors(world, state_tensors(user.module), ranks[0], ranks)
        program = user.replicate() if copied or by_device else user
        program.module.to(world.device)
        own_slices(program)
        by_device[slot.device] = program
    return hosted


def match_modes(worker: StageWorker, programs: Sequence[StageProgram]) -> None:
    """Put every copy of a stage into the training or evaluation modes of the user's module."""
    for replica in worker.replicas.values():
        user = programs[replica.slot.stage].module
        if replica.module is not user:
            copy_modes(user, replica.module)


def align_buffers(worker: StageWorker, stage: int) -> None:
    """Give the replicas of a stage on all ranks the buffers of replica 0."""
    ranks = worker.placement.ranks(stage, worker.placement.position(stage, worker.world.rank))
    held = worker.of_stage(stage)
    if held and len(set(ranks)) > 1:
        broadcast_tensors(worker.world, held[0].module.buffers(), ranks[0], ranks)


def align_all_buffers(worker: StageWorker) -> None:
    """Do so for all stages with several replicas."""
    replicated = [number for number, stage in enumerate(worker.placement.plan.stages) if stage.degree > 1]
    if replicated:
        worker.monitor.enter("buffers", peer=ALL_PEERS)
    for stage in replicated:
        align_buffers(worker, stage)


def open_groups(plan: Plan, placement: RankPlacement, world: World) -> None:
    """Open the groups that reduce gradients of a stage, or of tied parameters; every rank must call this."""
    for number, stage in enumerate(plan.stages):
        for position in range(stage.tensor):
            world.open_group(placement.ranks(number, position))
    open_teams(placement, world)
    for tied in plan.tied_gradients:
        for ranks in tied_ranks(plan, placement, tied):
            world.open_group(ranks)
