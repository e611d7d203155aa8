"""A training on local processes, which this process starts and waits for."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.launcher import check_port, launch
from graphpipe.plans import Plan
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.slow_devices import Replanning, SlowDevices
from graphpipe.training.elastic.supervisor import Supervisor
from graphpipe.training.make_plan import plan_again
from graphpipe.training.prepare import Prepared, prepare
from graphpipe.training.prepare_elastic import has_checkpoint, replan, reroute, use_next
from graphpipe.training.run_folder.finished_run import FinishedRun, finish
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.task.count_steps import count_steps
from graphpipe.training.task.task import load_task
from graphpipe.waiting import waiting

RANK_ENTRY = "graphpipe.training.train_rank:train_from_folder"
"""What every rank runs."""


def train_locally(
    config: TrainConfig,
    *,
    plan: Plan | str | Path | None,
    resume: RunFolder | None,
    tell: Callable[[str], None],
    on_plan: Callable[[Plan], None],
) -> FinishedRun:
    """Prepare a training, run it with one process per device of its plan, and return its result.

    Args: as `graphpipe.train`.

    Raises: as `graphpipe.train`.
    """
    check_port(config.run.port)
    with RunLock() as lock:
        with waiting("loading the task"):
            task = load_task(config.task, config.folder, config.train.seed)
        prepared = prepare(config, task, lock=lock, tell=tell, plan=plan, resume=resume)
        on_plan(prepared.plan)
        tell(f"training on {len(prepared.plan.used_devices)} local processes, into {prepared.folder}")
        try:
            steps = count_steps(config, task)
            last = _run_ranks(config, prepared, steps, resume=resume is not None, tell=tell, on_plan=on_plan)
        except KeyboardInterrupt:
            tell(how_to_resume(prepared.folder))
            raise
        return finish(prepared.folder, last)


def how_to_resume(folder: RunFolder) -> str:
    """Return how to continue a training that was interrupted."""
    if not has_checkpoint(folder):
        return f"{folder} has no checkpoint to resume from: train.checkpoint_every=STEPS makes some"
    return f"the same command with --resume {folder} continues from its last checkpoint"


def _run_ranks(
    config: TrainConfig,
    prepared: Prepared,
    steps: int,
    *,
    resume: bool,
    tell: Callable[[str], None],
    on_plan: Callable[[Plan], None],
) -> Plan:
    # Returns the plan that was run last.
    folder, plan = prepared.folder, prepared.plan
    if not config.run.elastic:
        arguments = [str(folder), *(["resume"] if resume else [])]
        try:
            with SlowDevices(folder=folder, current=lambda: plan, replanning=None, tell=tell):
                launch(
                    RANK_ENTRY,
                    len(plan.used_devices),
                    arguments=arguments,
                    port=config.run.port,
                    timeout_seconds=config.run.timeout_seconds,
                )
        except RankFailed as failure:
            if not folder.metrics.exists():
                raise
            tell(f"{failure} The results were written before")
        return plan

    def next_plan(cluster: Cluster) -> Plan:
        found = replan(config, folder, plan, cluster)
        on_plan(found)
        return found

    def rerouted(present: Plan, lost: Collection[str]) -> Plan | None:
        found = reroute(config, folder, present, lost)
        if found is not None:
            on_plan(found)
        return found

    def use(found: Plan) -> None:
        use_next(found, folder)
        on_plan(found)

    assert config.train.checkpoint_every is not None, "an elastic run makes checkpoints"
    supervisor = Supervisor(
        folder=folder,
        cluster=plan.cluster,
        start=partial(launch, RANK_ENTRY),
        replan=next_plan,
        reroute=rerouted,
        replanning=Replanning(
            costs=plan.costs,
            plan=partial(plan_again, config, plan),
            use=use,
            steps=steps,
            every=config.train.checkpoint_every,
        ),
        settings=config.run,
        tell=tell,
    )
    return supervisor.train(plan, resume=resume)
