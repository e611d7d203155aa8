"""Builds what trains in rounds on one rank: the layers that it needs, and their optimizers."""

from collections.abc import Mapping, Sequence

from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.rank_placement import RankPlacement, ReplicaSlot
from graphpipe.run.comm.world import World
from graphpipe.run.rounds.layer_copy import LayerCopy, moved_to
from graphpipe.run.rounds.share_weights import WeightSharing
from graphpipe.run.rounds.train_rounds import TrainRounds
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.evaluation import Evaluation
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.weights.replica_sync import StageReplicas
from graphpipe.run.weights.sync_allreduce import AllReduce
from graphpipe.run.weights.weight_update import (
    NamedParameter,
    OptimizerFactory,
    OptimizerGroup,
    ScheduledOptimizer,
    WeightUpdate,
    kind_of,
)
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds

Programs = Mapping[tuple[int, int], StageProgram]
"""The programs of layers on other devices than that of their forward, by number and device."""


def copied_programs(
    rounds: Rounds, programs: Sequence[StageProgram], placement: RankPlacement, world: World
) -> Programs:
    """Return copies of the layers whose gradients this rank computes on other devices, before others are freed."""
    wanted = {
        (task.layer, device)
        for task, device in rounds.device_of.items()
        if placement.rank_of[device] == world.rank and device != rounds.device_of[LayerTask("F", task.layer)]
    }
    copies = {key: programs[key[0]].replicate() for key in sorted(wanted)}
    for program in copies.values():
        moved_to(program.module, world.device)
    return copies


def build_rounds(
    rounds: Rounds,
    like: Evaluation,
    programs: Sequence[StageProgram],
    copies: Programs,
    optimizer: OptimizerFactory | None,
    options: PipelineOptions,
) -> TrainRounds:
    """Return what trains in rounds.

    Args:
        rounds: to be run.
        like: runs forwards of the same layers as stages.
        programs: of all layers.
        copies: see `copied_programs`.
        optimizer: of the pipeline.
        options: of the pipeline.
    """
    worker = like.worker
    layers = _layers(rounds, worker, copies, options)
    updated = [layer for _, layer in sorted(layers.items()) if "W" in layer.kinds and layer.trained]
    by_layer: dict[int, list[ScheduledOptimizer]] = {}
    if rounds.weights == "flush":
        groups = _groups([named for layer in updated for named in layer.replica.trained()], optimizer)
        update = WeightUpdate.of(groups, optimizer, options.lr_scheduler, options.clip_norm)
    else:
        groups = []
        for layer in updated:
            own = _groups(layer.replica.trained(), optimizer)
            groups += own
            if optimizer is not None:
                by_layer[layer.number] = [
                    ScheduledOptimizer.of(group, optimizer, options.lr_scheduler) for group in own
                ]
        update = WeightUpdate(
            groups=groups, optimizers=[each for some in by_layer.values() for each in some], clip_norm=None
        )
    return TrainRounds(
        rounds=rounds,
        plan=like.plan,
        output_stage=like.output_stage,
        worker=worker,
        batches=like.batches,
        sums=like.sums,
        loss_fn=like.loss_fn,
        layers=layers,
        sharing=WeightSharing(
            rounds=rounds,
            placement=worker.placement,
            world=worker.world,
            layers=layers,
            modes={number: program.module for number, program in enumerate(programs)},
        ),
        update=update,
        by_layer=by_layer,
        rolls_back=options.rollback,
        with_norms=options.check_finite or options.clip_norm is not None,
    )


def _layers(
    rounds: Rounds, worker: StageWorker, copies: Programs, options: PipelineOptions
) -> dict[tuple[int, int], LayerCopy]:
    kinds: dict[tuple[int, int], set[str]] = {}
    for task, device in rounds.device_of.items():
        if worker.placement.rank_of[device] == worker.world.rank:
            kinds.setdefault((task.layer, device), set()).add(task.kind)
    layers: dict[tuple[int, int], LayerCopy] = {}
    for (number, device), own in sorted(kinds.items()):
        replica = worker.replicas.get((number, device))
        if replica is None:
            replica = _replica(number, device, copies[number, device], worker, options)
        layers[number, device] = LayerCopy(number=number, device=device, replica=replica, kinds=frozenset(own))
    return layers


def _replica(
    number: int, device: int, program: StageProgram, worker: StageWorker, options: PipelineOptions
) -> StageReplica:
    name, parameters = worker.placement.plan.stages[number].name, tuple(program.module.parameters())
    replicas = StageReplicas(
        world=worker.world,
        ranks=(worker.world.rank,),
        stage=name,
        original=program.module,
        modules=(program.module,),
        parameters=(parameters,),
    )
    return StageReplica(
        slot=ReplicaSlot(stage=number, replica=0, device=device),
        stage_name=name,
        program=program,
        device=worker.world.device,
        monitor=worker.monitor,
        parameters=parameters,
        sync=AllReduce(replicas),
        last=None,
        precision=options.precision,
    )


def _groups(named: Sequence[NamedParameter], optimizer: OptimizerFactory | None) -> list[OptimizerGroup]:
    groups: dict[str, OptimizerGroup] = {}
    for name, parameter in named:
        groups.setdefault(kind_of(optimizer, name), OptimizerGroup()).named.append((name, parameter))
    return [*groups.values()]
