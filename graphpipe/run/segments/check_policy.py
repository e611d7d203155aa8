"""Checks that the options of a pipeline fit the plan's weight policy, before anything runs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.stage import OTHER_BACKWARDS
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.weights.check_sync import choices
from graphpipe.run.weights.registry import find_sync
from graphpipe.run.weights.stage_syncs import StageSyncs


class _Conflict(NamedTuple):
    where: str
    what: str
    """What is set, and why it needs a flush."""
    remedy: str


def check_policy(plan: Plan, syncs: StageSyncs, options: PipelineOptions) -> None:
    """Check what cannot be combined with updates that come at different times in different stages.

    Args:
        plan: to be run, under another weight policy than `flush`.
        syncs: how the replicas of its stages synchronise.
        options: of the pipeline.

    Raises:
        InvalidInput: an option or the plan needs a flush after every mini-batch.
    """
    for conflict in (*_of_options(options), *_of_stages(plan, syncs.names), *_of_sharding(plan, syncs)):
        raise InvalidInput(
            f"{conflict.what} (the plan's weight policy is '{plan.weights}')",
            where=conflict.where,
            remedy=f"{conflict.remedy}, or plan with weights='flush'.",
        )


def _of_options(options: PipelineOptions) -> Iterator[_Conflict]:
    if options.clip_norm is not None:
        what = "needs the gradients of all stages before any update, but stages update at different times"
        yield _Conflict("clip_norm", what, "Leave it out")
    if options.precision == "fp16":
        what = "fp16 skips the update of all stages when a gradient overflows, but some have updated by then"
        yield _Conflict("precision", what, "Choose bf16 or fp32")


def _of_stages(plan: Plan, names: Sequence[str]) -> Iterator[_Conflict]:
    for stage, name in zip(plan.stages, names, strict=True):
        if stage.degree > 1 and not find_sync(name).traits.overlaps_mini_batches:
            what = f"'{name}' cannot sum gradients over the replicas of stage '{stage.name}' while forwards of the "
            fits = choices(lambda traits: traits.overlaps_mini_batches)
            yield _Conflict("engine", f"{what}next mini-batch run", f"Choose {fits}")
        if plan.weights in OTHER_BACKWARDS and stage.recompute != "none":
            what = "recomputes in its backward, which reads other weights than its forward"
            yield _Conflict(f"stage '{stage.name}'", what, "Set recompute to 'none', or weights to 'stash'")


def _of_sharding(plan: Plan, syncs: StageSyncs) -> Iterator[_Conflict]:
    for at in sorted(syncs.zero1):
        if plan.stages[at].degree > 1:
            what = "shards its optimizer state, and replicas would exchange weights while they are used"
            remedy = "Set its state to 'whole' and leave shard_optimizer out"
            yield _Conflict(f"stage '{plan.stages[at].name}'", what, remedy)
    for tied in plan.tied_gradients:
        first, second = (plan.stages[at].name for at in tied.stages[:2])
        what = f"stages '{first}' and '{second}' share it, but update at different times"
        yield _Conflict(f"parameter '{tied.parameters[0]}'", what, "Put its operators into one stage")
