"""Plans for the devices that an elastic run has: those that are left on this machine, or the hosts that have joined."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.model.split.split import capture_for
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import list_checkpoints, newest_resumable
from graphpipe.run.checkpoint.manifest import PLAN, TRAINING
from graphpipe.run.checkpoint.training_state import TrainingState
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.training.check_task import check_task
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.degraded_plan import why_not_reroute, without_devices
from graphpipe.training.elastic.membership import Membership, note_restart
from graphpipe.training.epoch_sizes import check_sizes
from graphpipe.training.make_plan import make_plan, plan_again, use_plan
from graphpipe.training.prepare import Prepared, save_plan
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.task.count_steps import check_data, count_steps
from graphpipe.training.task.task import Task


def replan(config: TrainConfig, folder: RunFolder, first: Plan, cluster: Cluster) -> Plan:
    """Plan for other devices with the costs and weight policy of the first plan. Its own devices get that plan again.

    The plan is written to the run's folder by `use_next`.
    """
    found = first if cluster == first.cluster else plan_again(config, first, cluster)
    use_next(found, folder)
    return found


def use_next(plan: Plan, folder: RunFolder) -> None:
    """Write a plan to the run's folder twice: as plan.json, which the ranks run, and under a number, which stays."""
    save_plan(plan, folder)
    plan.save(folder.next_plan())


def reroute(config: TrainConfig, folder: RunFolder, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Return a plan of the same stages without some devices, and write it to the run's folder as `replan` does.

    Args:
        config: of the training.
        folder: of the run.
        plan: that was run.
        lost: names of devices.

    Returns:
        None if the other ranks cannot go on with what they have in memory.
    """
    found = None if why_not_reroute(config, plan) else without_devices(plan, lost)
    if found is not None:
        use_next(found, folder)
    return found


def has_checkpoint(folder: RunFolder) -> bool:
    """Return whether a run has a checkpoint to resume from."""
    return bool(list_checkpoints(folder.checkpoints))


def prepare_elastic(
    config: TrainConfig,
    task: Task,
    membership: Membership,
    *,
    lock: RunLock,
    tell: Callable[[str], None],
    plan: Plan | str | Path | None = None,
) -> Prepared:
    """Plan for the hosts that have joined under torchrun. Only rank 0 calls this.

    Args:
        config: of the training.
        task: its task.
        membership: the hosts, and the folder of the run.
        lock: locks the folder before anything in it is changed.
        tell: called with a line of text for each thing that takes a while.
        plan: to begin with, or a file of one. It is not used once the run has a checkpoint.

    Raises:
        Infeasible: no plan fits on the hosts.
        InvalidInput: the run is complete, or another training writes to the run's folder.
        CheckpointCorrupt: every checkpoint is damaged.
    """
    folder, cluster, ranks = membership.folder, membership.cluster, len(membership.cluster.devices)
    steps = count_steps(config, task)
    check_data(config, task)
    planning_seconds = None
    lock.take(folder, config.run.timeout_seconds)  # A host that was cut off gives up within this time.
    if has_checkpoint(folder):
        last = _last_plan(folder, steps)
        start = time.perf_counter()
        found = last if last.cluster == cluster else plan_again(config, last, cluster)
        planning_seconds = time.perf_counter() - start
        captured = capture_for(task.model, found.graph)
    elif plan is not None:
        found, captured = use_plan(config, task, plan)
    else:
        found, captured = make_plan(config, task, cluster, tell)
    RankPlacement.of(found, ranks)
    check_sizes(config, task, found)
    if not has_checkpoint(folder):
        check_task(config, task, found, captured, tell)
    folder.path.mkdir(parents=True, exist_ok=True)
    lock.take(folder)
    config.save(folder.config)
    save_capture(captured, folder.capture)
    if folder.plan.exists():
        found.save(folder.next_plan())
    note_restart(folder, cluster, planning_seconds)  # `save_plan` removes the results, which this looks for.
    return Prepared(folder=folder, plan=found, trace=save_plan(found, folder))


def _last_plan(folder: RunFolder, steps: int) -> Plan:
    # The plan of the last checkpoint. Refuses to train on where all steps are done.
    checkpoint = newest_resumable(folder.checkpoints)
    training = TrainingState.load(checkpoint / TRAINING)
    training.check_unfinished(steps, results=folder.metrics.exists(), where=str(checkpoint))
    return Plan.load(checkpoint / PLAN)
