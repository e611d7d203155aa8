"""What surrounds a training that goes on when ranks are lost: further plans, by the supervisor or as hosts meet."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from graphpipe.cli.output import Output
from graphpipe.cluster import Cluster
from graphpipe.cluster.presets import resolve
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.checkpoints import settle
from graphpipe.run.checkpoint.folder import checkpoints_in
from graphpipe.run.checkpoint.snapshot import PLAN
from graphpipe.run.checkpoint.training_state import TRAINING, TrainingState
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.training import train_rank as files
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.membership import meet, note_return, run_folder
from graphpipe.training.elastic.supervisor import Supervisor
from graphpipe.training.prepare import load_plan, make_plan, plan_for, save_plan
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.task.task import Task


def supervise(config: TrainConfig, directory: Path, plan: Plan, output: Output, *, resume: bool) -> Plan:
    """Train on local processes to the end, whatever ranks are lost, and return the last plan.

    Raises:
        RankFailed: see `Supervisor.train`.
        Infeasible: no plan fits on the devices that are left.
    """
    supervisor = Supervisor(
        directory=directory,
        cluster=plan.cluster,
        replan=partial(replan, config, directory, plan, output),
        settings=config.run,
        tell=output.show,
    )
    return supervisor.train(plan, resume=resume)


def replan(config: TrainConfig, directory: Path, first: Plan, output: Output, cluster: Cluster) -> Plan:
    """Plan for what is left of the first plan's cluster with its costs, and write the plan to the run's folder twice.

    As plan.json it is what runs; under a number it stays. All devices get the first plan again.
    """
    found = first if cluster == first.cluster else plan_for(config, first.graph, first.costs, cluster)
    save_plan(found, directory, output)
    _keep(found, directory)
    return found


def continued(directory: Path) -> bool:
    """True if a run has a checkpoint to go on from."""
    return bool(checkpoints_in(directory / files.CHECKPOINTS))


@dataclass(frozen=True, slots=True)
class Met:
    """The hosts of an elastic run that have come under torchrun."""

    directory: Path
    """Of the run."""
    cluster: Cluster
    """A device for each rank, in their order."""

    @staticmethod
    def of(config: TrainConfig, world: World) -> "Met":
        """Find out who has come; every rank must call this.

        Raises:
            InvalidInput: torchrun was not given what this needs, or more has come than the cluster has.
        """
        return Met(run_folder(config.run), meet(world, resolve(config.cluster)))


def prepare_met(
    config: TrainConfig, task: Task, plan_file: str | None, output: Output, met: Met, lock: RunLock
) -> tuple[Path, Plan]:
    """Plan for the hosts that have come, on rank 0; the others wait patiently.

    Raises:
        Infeasible: no plan fits on them.
        InvalidInput: the run is complete, the plan leaves a rank without work, or another training writes to the run's
            folder.
        CheckpointCorrupt: every checkpoint is damaged.
    """
    directory, cluster, ranks = met.directory, met.cluster, len(met.cluster.devices)
    steps = files.count_steps(config, task)
    planning_seconds = None
    lock.take(directory, config.run.timeout_seconds)  # by when a host that was cut off has given up
    if continued(directory):
        checkpoint = settle(directory / files.CHECKPOINTS)
        training, results = TrainingState.load(checkpoint / TRAINING), (directory / files.METRICS).exists()
        training.check_unfinished(steps, results=results, where=str(checkpoint))
        last = Plan.load(checkpoint / PLAN)
        start = time.perf_counter()
        found = last if last.cluster == cluster else plan_for(config, last.graph, last.costs, cluster)
        planning_seconds = time.perf_counter() - start
    else:
        found = load_plan(config, task, plan_file) if plan_file else make_plan(config, task, output, cluster)
    if len(found.used_devices) < ranks:
        used = len(found.used_devices)
        raise InvalidInput(
            f"the best plan uses {used} devices, {ranks} ranks have come",
            where="--elastic",
            remedy="Start fewer processes per host, or give larger mini-batches.",
        )
    Placement.of(found, ranks)
    directory.mkdir(parents=True, exist_ok=True)
    lock.take(directory)
    config.save(directory / files.CONFIG)
    if (directory / files.PLAN).exists():
        _keep(found, directory)
    note_return(directory, cluster, planning_seconds)  # before the results of a run that is trained on go
    save_plan(found, directory, output)
    return directory, found


def _keep(plan: Plan, directory: Path) -> None:
    # plan-2.json and so on: a run is the sequence of its plans.
    plan.save(directory / f"plan-{2 + len(list(directory.glob('plan-*.json')))}.json")
