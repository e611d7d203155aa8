"""Checks that a replica synchronisation fits the other options and the schedule. Only its traits decide."""

from collections.abc import Callable, Collection, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.weights.registry import REPLICA_SYNCS, find_sync
from graphpipe.run.weights.replica_sync import SyncTraits
from graphpipe.schedule import LoweredSchedule
from graphpipe.schedule.deadlock import find_deadlock
from graphpipe.schedule.schedulers.registry import all_schedulers


def check_sync(name: str, *, shard_optimizer: bool, section: str = "") -> None:
    """Check the name of a synchronisation, and whether the optimizer's state can be sharded as well.

    Args:
        name: of the synchronisation.
        shard_optimizer: whether replicas shard the optimizer's state (ZeRO-1).
        section: put before the names of both settings in errors, such as `train.`.

    Raises:
        InvalidInput: the name is unknown (the nearest one is given), or it shards the optimizer's state itself.
    """
    sync = find_sync(name, where=f"{section}engine")
    if shard_optimizer and sync.traits.shards_optimizer:
        raise InvalidInput(
            f"is true, and engine '{name}' shards the optimizer's state itself",
            where=f"{section}shard_optimizer",
            remedy=f"Leave it out, or choose {choices(lambda traits: not traits.shards_optimizer)}.",
        )


def check_schedule(
    names: Sequence[str], plan: Plan, split: Collection[int], placement: RankPlacement, lowered: LoweredSchedule
) -> None:
    """Check that synchronisations work under a plan's schedule.

    Args:
        names: of the synchronisation of each stage.
        plan: to be run.
        split: stages whose backward is split into two halves.
        placement: of the plan on the ranks.
        lowered: the plan's schedule.

    Raises:
        InvalidInput: one needs whole backwards and a stage with replicas splits them, or it reduces inside the last
            backward and ranks would wait for each other forever; or as `check_samples`.
    """
    check_samples(names, plan, placement)
    spread = _spread(plan, placement)
    for name in dict.fromkeys(names):
        traits, stages = find_sync(name).traits, {stage for stage in spread if names[stage] == name}
        if not traits.split_backward:
            _check_whole_backwards(name, plan, sorted(stages & {*split}))
        if traits.exchanges_in_tasks:
            _check_tasks(name, plan, stages, placement)
        if traits.reduces_in_backward:
            _check_progress(name, plan, stages, lowered)


def check_samples(names: Sequence[str], plan: Plan, placement: RankPlacement) -> None:
    """Check that a short last micro-batch has a sample for every replica, where these wait for each other in tasks.

    Args:
        names: of the synchronisation of each stage.
        plan: to be run, or for a smaller mini-batch.
        placement: of the plan on the ranks.

    Raises:
        InvalidInput: a replica would skip a task in which the others wait for it.
    """
    for number in sorted(_spread(plan, placement)):
        stage, traits = plan.stages[number], find_sync(names[number]).traits
        if not (traits.exchanges_in_tasks or traits.reduces_in_backward):
            continue
        if 0 < (left := plan.batch_size % stage.micro_batch) < stage.degree:
            fits = choices(lambda other: not (other.exchanges_in_tasks or other.reduces_in_backward))
            raise InvalidInput(
                f"micro-batches of {stage.micro_batch} leave {left} of {plan.batch_size} samples for the last one of "
                f"stage '{stage.name}', which has {stage.degree} replicas, and each of them needs one",
                where=f"engine '{names[number]}'",
                remedy=f"Choose {fits}, or other micro-batches.",
            )


def _spread(plan: Plan, placement: RankPlacement) -> set[int]:
    # Stages whose replicas are on several ranks.
    return {stage for stage in range(len(plan.stages)) if len(set(placement.ranks(stage))) > 1}


def _check_whole_backwards(name: str, plan: Plan, split: list[int]) -> None:
    if split:
        stage = plan.stages[split[0]]
        whole = [
            scheduler.name
            for scheduler in all_schedulers().values()
            if not scheduler.splits_backward and not scheduler.uses_bursts
        ]
        raise InvalidInput(
            f"schedule {plan.schedule} splits the backward of stage '{stage.name}', which has {stage.degree} replicas, "
            f"and engine '{name}' needs whole backwards",
            where=f"engine '{name}'",
            remedy=f"Choose {choices(lambda traits: traits.split_backward)}, or schedule {' or '.join(whole)}.",
        )


def _check_tasks(name: str, plan: Plan, stages: set[int], placement: RankPlacement) -> None:
    remedy = f"Choose {choices(lambda traits: not traits.exchanges_in_tasks)}."
    for stage in sorted(stages):
        here = plan.stages[stage]
        shared = [rank for rank in placement.ranks(stage) if len(placement.slots(rank)) > 1]
        if shared:
            what = f"rank {shared[0]} hosts stage '{here.name}' and another one, and the engine exchanges in every task"
            raise InvalidInput(what, where=f"engine '{name}'", remedy=remedy)
        if here.offload or here.recompute not in ("none", "full"):
            what = f"stage '{here.name}' recomputes or offloads some of its layers, which the engine cannot do"
            raise InvalidInput(what, where=f"engine '{name}'", remedy=remedy)


def _check_progress(name: str, plan: Plan, stages: set[int], lowered: LoweredSchedule) -> None:
    stuck = find_deadlock(plan, lowered, inside=stages, messages_wait=False)
    if stuck:
        names = ", ".join(f"'{plan.cluster.devices[device].name}'" for device in sorted(stuck))
        raise InvalidInput(
            f"devices {names} would wait for each other forever: engine '{name}' reduces inside a stage's last "
            "backward, and another stage on one of these devices comes between",
            where=f"engine '{name}'",
            remedy=f"Choose {choices(lambda traits: not traits.reduces_in_backward)}, or give the stages devices of "
            "their own.",
        )


def choices(fits: Callable[[SyncTraits], bool]) -> str:
    """Return the synchronisations whose traits fit, as a setting: `engine='a', 'b' or 'c'`."""
    *others, last = [f"'{name}'" for name, sync in REPLICA_SYNCS.items() if fits(sync.traits)]
    return "engine=" + (f"{', '.join(others)} or {last}" if others else last)
