"""What a pipeline is made of on one rank: built once, used in every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256

from torch import nn

from graphpipe.model.backends.registry import check_backward
from graphpipe.model.compiled.own_compilations import own_compilations
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.model.hidden.later_changes import LaterChanges
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.check_host_memory import check_host_memory
from graphpipe.run.comm.batch_comparison import neighbours
from graphpipe.run.comm.peer_watch import PeerWatch, Progress
from graphpipe.run.comm.plan_handshake import shake_hands
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.warm_up_pairs import communicating_pairs
from graphpipe.run.comm.world import World
from graphpipe.run.device.precision import check_planned_precision, check_precision_of_device, initial_scale
from graphpipe.run.faults.rank_status import NO_PEER
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.forward_digest import computed_alike
from graphpipe.run.initial_weights.host_tensors import host_tensors
from graphpipe.run.rounds.build_rounds import build_rounds, copied_programs
from graphpipe.run.rounds.check_rounds import check_rounds, compiled_apart
from graphpipe.run.rounds.train_rounds import TrainRounds
from graphpipe.run.segments.build_updates import build_updates
from graphpipe.run.segments.check_policy import check_policy
from graphpipe.run.segments.train_segment import TrainSegment, segment_schedules
from graphpipe.run.stage.edge_values import EdgeSpecs, gradient_edges
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.losses.sample_loss import SampleLoss, trainable
from graphpipe.run.step.batch_preparer import BatchPreparer
from graphpipe.run.step.build_worker import build_worker
from graphpipe.run.step.evaluation import Evaluation, forward_schedules
from graphpipe.run.step.find_needs import find_needs
from graphpipe.run.step.optimizer_groups import optimizer_groups
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.step.programs_by_shape import ProgramsByShape
from graphpipe.run.step.step_summary import summary_length
from graphpipe.run.step.train_step import TrainStep
from graphpipe.run.tensor.share_stages import check_tensor, share_stages
from graphpipe.run.weight_digest import digest_of
from graphpipe.run.weights.check_sync import check_schedule
from graphpipe.run.weights.stage_syncs import StageSyncs
from graphpipe.run.weights.tied_updates import warn_of_tied_updates
from graphpipe.run.weights.weight_update import OptimizerFactory, WeightUpdate
from graphpipe.run.worker.compiled_step import compiler_for
from graphpipe.run.worker.smaller_batches import smaller_steps
from graphpipe.run.worker.user_weights import UserWeights
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule import LoweredSchedule, Schedule
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.user_frames import warn_user

_KEPT = 4
"""Sizes of mini-batches whose needs are kept: usually two, because the last one of an evaluation is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts:
    """The parts of a pipeline on one rank."""

    programs: tuple[StageProgram, ...]
    """The program of each stage, for the inputs that the plan was made with."""
    worker: StageWorker
    batches: BatchPreparer
    sums: ScalarSum
    training: TrainStep | TrainSegment | TrainRounds
    """Trains a step at a time, or a segment at a time if the plan's weight policy does not flush or gradients are
    computed apart."""
    evaluation: Evaluation


def build_parts(
    world: World,
    plan: Plan,
    model: nn.Module | Sequence[StageProgram],
    loss_fn: LossFunction,
    optimizer: OptimizerFactory | None,
    options: PipelineOptions,
    rounds: Rounds | None = None,
) -> PipelineParts:
    """Split the model, check the plan with all ranks, and build this rank's stages; every rank must call this.

    Args:
        world: this rank.
        plan: to be run.
        model: the user's module, or stage programs.
        loss_fn: of the pipeline.
        optimizer: of the pipeline.
        options: of the pipeline.
        rounds: whose layers are the stages of the plan; None trains the stages.

    Raises:
        InvalidInput: the world or the model does not fit the plan, or the ranks differ.
        Infeasible: a node has less free memory than its ranks offload.
        PeerLost, PeerStalled: another rank is gone.
    """
    loss = SampleLoss.of(loss_fn)
    syncs = StageSyncs.of(plan, options.engine, shard_optimizer=options.shard_optimizer)
    check_backward(plan)
    if plan.weights != "flush":
        check_policy(plan, syncs, options)
    check_tensor(plan, options.engine)
    placement = RankPlacement.of(plan, world.size, None if rounds is None else rounds.devices)
    if rounds is not None:
        check_rounds(rounds, plan, world, options)
    share = partial(share_stages, placement=placement, world=world)
    shapes = ProgramsByShape(plan, model, options.precision, world.device, options.captured, share)
    programs, specs = shapes.first.programs, shapes.first.specs
    tasks = build_schedule(plan) if plan.weights == "flush" else build_segment(plan, 1)
    lowered = lower(plan, tasks, gradient_edges=gradient_edges(specs))
    verify_lowered(plan, tasks, lowered, gradient_edges(specs))
    shake_hands(world, plan, placement, _settings(specs, options, rounds) | computed_alike(model, loss_fn))
    check_planned_precision(plan, options.precision)
    check_precision_of_device(world.device, options.precision)
    check_host_memory(world, placement)
    weights = digest_of(model) if world.size > 1 and isinstance(model, nn.Module) else ""  # before they are sharded
    copies = {} if rounds is None else copied_programs(rounds, programs, placement, world)
    if isinstance(model, nn.Module):
        host_tensors(model, programs, placement, world, options.initial_weights, options.seed)
    worker = _worker(programs, placement, world, tasks, lowered, options, syncs)
    compiler = _compiler(model, programs, tasks, plan, syncs, options, rounds)
    _let_read(loss, worker, output_stage := [program.is_output for program in programs].index(True))
    ranks = neighbours(plan, placement, lowered, world.rank, () if rounds is None else rounds.pairs)
    PeerWatch.begin(world, ranks, lambda: _progress(worker.monitor))
    batches = BatchPreparer(
        plan=plan,
        shapes=shapes,
        worker=worker,
        neighbours=ranks,
        needs=lru_cache(maxsize=_KEPT)(
            partial(
                find_needs,
                placement,
                world.rank,
                programs,
                all_targets=loss.weighs and (plan.weights != "flush" or rounds is not None),
                gradients_of=[layer for layer, _ in copies],
            )
        ),
        options=options,
        engines=syncs.names,
        user=UserWeights.of(user := model if isinstance(model, nn.Module) else None, programs, worker),
        changes=None if user is None else LaterChanges(user, _called(programs, worker)),
        weights=weights,
    )
    sums = ScalarSum(world, summary_length(plan, output_stage), root=placement.ranks(0)[0])
    evaluation = Evaluation(
        plan=plan,
        schedules=forward_schedules(plan, tasks, placement),
        output_stage=output_stage,
        worker=worker,
        batches=batches,
        sums=sums,
        loss_fn=loss,
    )
    if rounds is not None:
        training = build_rounds(rounds, evaluation, programs, copies, optimizer, options)
    elif plan.weights == "flush":
        training = _train_step(evaluation, lowered, gradient_edges(specs), optimizer, options, syncs, compiler)
    else:
        training = _train_segment(evaluation, gradient_edges(specs), optimizer, options, compiler)
    if world.rank == 0:
        warn_of_idle_ranks(placement, world.size)
    trained = _trained_names(programs)
    if world.rank == min((rank for stage in trained for rank in placement.ranks(stage)), default=0):
        warn_of_tied_updates(training.update, {name for names in trained.values() for name in names})
    return PipelineParts(
        programs=programs, worker=worker, batches=batches, sums=sums, training=training, evaluation=evaluation
    )


def _trained_names(programs: Sequence[StageProgram]) -> dict[int, list[str]]:
    """Return the names of the trainable parameters of each stage that has some."""
    names = {
        stage: [program.parameter_names[name] for name, each in program.module.named_parameters() if each.requires_grad]
        for stage, program in enumerate(programs)
    }
    return {stage: some for stage, some in names.items() if some}


def _compiler(
    model: nn.Module | Sequence[StageProgram],
    programs: Sequence[StageProgram],
    tasks: Schedule,
    plan: Plan,
    syncs: StageSyncs,
    options: PipelineOptions,
    rounds: Rounds | None,
) -> StageCompiler | None:
    names = [stage.name for stage in plan.stages]
    modules = [(name, program.module) for name, program in zip(names, programs, strict=True)]
    own = own_compilations(model, modules) if isinstance(model, nn.Module) else {}
    if own and rounds is not None:
        raise compiled_apart(next(iter(own)))
    split = [names[stage] for stage in tasks.split_stages]
    return compiler_for(plan, syncs, every=options.compile, own=own, split=split)


def _called(programs: Sequence[StageProgram], worker: StageWorker) -> list[nn.Module]:
    # The modules that stages call as the user has them, hooks and all. Other replicas in this process are copies.
    copied = {
        each.slot.stage for each in worker.replicas.values() if each.module is not programs[each.slot.stage].module
    }
    return [part for stage, each in enumerate(programs) if stage not in copied for part in each.module.modules()]


def _progress(monitor: StatusReporter) -> Progress:
    status = monitor.last_status
    return Progress(status.seconds, waits=status.peer != NO_PEER)


def _let_read(loss: SampleLoss, worker: StageWorker, output_stage: int) -> None:
    """Say what the loss may read: parameters of the model whose gradients arrive where the model's own do.

    An example is a norm of weights.
    """
    alone = worker.world.size == 1
    for leader in worker.leaders():
        if leader.slot.stage == output_stage or alone:
            loss.trained |= trainable(leader.module)
        program = leader.program
        if leader.slot.stage == output_stage and isinstance(program, ModuleStage) and program.mixes:
            loss.checked = False  # the forward and the loss are checked together (see `divided_forward`)


def _train_step(
    like: Evaluation,
    lowered: LoweredSchedule,
    edges: frozenset[int],
    optimizer: OptimizerFactory | None,
    options: PipelineOptions,
    syncs: StageSyncs,
    compiler: StageCompiler | None,
) -> TrainStep:
    groups = optimizer_groups(like.worker, optimizer, sharded=syncs.zero1)
    return TrainStep(
        plan=like.plan,
        lowered=lowered,
        smaller=smaller_steps(like.plan, like.worker.placement, edges),
        output_stage=like.output_stage,
        worker=like.worker,
        batches=like.batches,
        sums=like.sums,
        loss_fn=like.loss_fn,
        update=WeightUpdate.of(groups, optimizer, options.lr_scheduler, options.clip_norm, options.average_decay),
        check_finite=options.check_finite,
        loss_scale=initial_scale(options.precision),
        compiler=compiler,
    )


def _train_segment(
    like: Evaluation,
    edges: frozenset[int],
    optimizer: OptimizerFactory | None,
    options: PipelineOptions,
    compiler: StageCompiler | None,
) -> TrainSegment:
    update, stage_updates = build_updates(like.plan, like.worker, optimizer, options)
    return TrainSegment(
        plan=like.plan,
        schedules=segment_schedules(like.plan, edges, like.worker.placement),
        output_stage=like.output_stage,
        worker=like.worker,
        batches=like.batches,
        sums=like.sums,
        loss_fn=like.loss_fn,
        update=update,
        stage_updates=stage_updates,
        rolls_back=options.rollback,
        with_norms=options.check_finite,
        compiler=compiler,
    )


def _settings(specs: EdgeSpecs, options: PipelineOptions, rounds: Rounds | None) -> dict[str, str | int]:
    """Return what must be the same on all ranks (see `shake_hands`)."""
    return {
        "engine": options.engine,
        "devices of gradients": "" if rounds is None else f"{rounds.weights} {sorted(rounds.device_of.items())}",
        "stages": "compiled" if options.compile else "eager",
        "optimizer sharding": "shared out" if options.shard_optimizer else "whole",
        "precision": options.precision,
        "values on the stage edges": digest(specs),
        "seed": options.seed,
        "limit of the gradients": str(options.clip_norm),
        "decay of averages": str(options.average_decay),
        "initial weights": "the model's" if options.initial_weights is None else options.initial_weights.description,
    }


def digest(specs: EdgeSpecs) -> str:
    """Return the SHA-256 of the names, shapes, dtypes and gradients of all values on all edges."""
    text = [
        f"{edge} {spec.name} {spec.sample_shape} {spec.dtype} {spec.requires_grad}"
        for edge, values in sorted(specs.items())
        for spec in values
    ]
    return sha256("\n".join(text).encode()).hexdigest()


def _worker(
    programs: Sequence[StageProgram],
    placement: RankPlacement,
    world: World,
    tasks: Schedule,
    lowered: LoweredSchedule,
    options: PipelineOptions,
    syncs: StageSyncs,
) -> StageWorker:
    stages = [stage.name for stage in placement.plan.stages]
    monitor = StatusReporter.of(world.rank, stages, world.device, options.faults, options.fault_log)
    check_schedule(syncs.names, placement.plan, tasks.split_stages, placement, lowered)
    worker = build_worker(programs, placement, world, monitor, tasks, lowered, options, syncs.names)
    worker.messages.open(communicating_pairs(lowered, placement))
    return worker


def warn_of_idle_ranks(placement: RankPlacement, size: int) -> None:
    """Warn of ranks without a stage, of `size` ranks."""
    if idle := placement.idle:
        numbers = ", ".join(map(str, idle))
        warn_user(
            f"rank{'s' * (len(idle) > 1)} {numbers} of {size} only wait{'s' * (len(idle) == 1)} for the "
            f"others: the plan uses {len(placement.plan.used_devices)} devices"
        )
