"""Gives each stage of a rank an optimizer of its own, and each replica the weights that its tasks read."""

from collections.abc import Mapping, Sequence
from functools import partial

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.segments.stage_update import StageUpdate
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.versions.averaged_weights import AveragedWeights
from graphpipe.run.versions.directions import check_predictable, predict
from graphpipe.run.versions.predicted_weights import Predict, PredictedWeights
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.versions.stored_versions import StoredVersions
from graphpipe.run.weights.weight_update import (
    OptimizerFactory,
    OptimizerGroup,
    ScheduledOptimizer,
    WeightUpdate,
    kind_of,
)
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule.segments.planned_versions import delays


def build_updates(
    plan: Plan, worker: StageWorker, optimizer: OptimizerFactory | None, options: PipelineOptions
) -> tuple[WeightUpdate, dict[int, StageUpdate]]:
    """Return the optimizers of a rank, one per stage, and the updates of its stages, which its replicas then run.

    Args:
        plan: to be run, under another weight policy than `flush`.
        worker: of this rank.
        optimizer: of the pipeline.
        options: of the pipeline.

    Raises:
        InvalidInput: the plan predicts weights, and this optimizer's updates cannot be predicted; or a stage has
            parameters of several classes of optimizers.
    """
    groups: list[OptimizerGroup] = []
    optimizers: list[ScheduledOptimizer] = []
    updates: dict[int, StageUpdate] = {}
    for leader in worker.leaders():
        stage, scheduled = leader.slot.stage, None
        if trained := leader.trained():
            groups.append(OptimizerGroup(named=trained))
            _check_one_kind(plan, stage, {kind_of(optimizer, name): name for name, _ in trained})
        if trained and optimizer is not None:
            scheduled = ScheduledOptimizer.of(groups[-1], optimizer, options.lr_scheduler, options.average_decay)
            optimizers.append(scheduled)
        updates[stage] = _stage_update(plan, worker.of_stage(stage), scheduled, with_norms=options.check_finite)
    return WeightUpdate(groups=groups, optimizers=optimizers, clip_norm=None), updates


def _check_one_kind(plan: Plan, stage: int, kinds: Mapping[str, str]) -> None:
    # Updates of a stage are predicted, averaged and kept as those of one optimizer.
    if len(kinds) > 1:
        named = " and ".join(f"{kind} for '{name}'" for kind, name in kinds.items())
        what = f"stage '{plan.stages[stage].name}' has {named}, and its weights are '{plan.weights}'"
        remedy = "Give all of its parameters one class of optimizers, or plan with weights='flush'."
        raise InvalidInput(what, where="optimizer", remedy=remedy)


def _stage_update(
    plan: Plan, replicas: Sequence[StageReplica], scheduled: ScheduledOptimizer | None, *, with_norms: bool
) -> StageUpdate:
    weights = _weights(plan, replicas, scheduled)
    update = StageUpdate(plan=plan, replicas=replicas, weights=weights, optimizer=scheduled, with_norms=with_norms)
    for replica, own in zip(replicas, weights, strict=True):
        replica.weights, replica.update = own, update.run
    return update


def _weights(
    plan: Plan, replicas: Sequence[StageReplica], scheduled: ScheduledOptimizer | None
) -> Sequence[StageWeights]:
    if plan.weights == "predict":
        predicts = _predictor(replicas[0], scheduled)
        return [PredictedWeights(replica.parameters, predicts) for replica in replicas]
    if plan.weights == "moving-average":
        delay = delays(plan)[replicas[0].slot.stage]
        return [AveragedWeights(replica.parameters, delay) for replica in replicas]
    return [StoredVersions(replica.parameters) for replica in replicas]


def _predictor(leader: StageReplica, scheduled: ScheduledOptimizer | None) -> Predict:
    trained = [parameter for parameter in leader.parameters if parameter.requires_grad]
    if scheduled is None:
        return lambda horizon: [parameter.detach().clone() for parameter in trained]
    check_predictable(scheduled.optimizer)
    return partial(predict, scheduled.optimizer, trained)
