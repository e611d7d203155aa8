"""A training as one of the ranks that torchrun has started: rank 0 prepares it, then all ranks train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphpipe.errors import GraphPipeError
from graphpipe.files.json_body import from_body, to_body
from graphpipe.plans import Plan
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.comm.world import World, join
from graphpipe.training.config.same_settings import check_same_settings
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.membership import Membership
from graphpipe.training.prepare import Prepared, prepare
from graphpipe.training.prepare_elastic import has_checkpoint, prepare_elastic
from graphpipe.training.run_folder.finished_run import FinishedRun, finish
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.task.task import load_task
from graphpipe.training.train_rank import train_rank


class NotPrepared(GraphPipeError):
    """Raised on the other ranks when rank 0 could not prepare the training. Rank 0 raises the error itself."""


def train_under_torchrun(
    config: TrainConfig,
    *,
    plan: Plan | str | Path | None,
    resume: RunFolder | None,
    tell: Callable[[str], None],
    on_plan: Callable[[Plan], None],
) -> FinishedRun:
    """Train on this rank, and return the result on every rank.

    Args: as `graphpipe.train`. Only rank 0 calls `tell` and `on_plan`.

    Raises: as `graphpipe.train`.
        NotPrepared: rank 0 could not prepare the training.
    """
    task = load_task(config.task, config.folder, config.train.seed)
    world = join(None, config.run.timeout_seconds)
    with world.closing_on_error(), RunLock() as lock:
        check_same_settings(world, config)
        membership = Membership.gather(config, world) if config.run.elastic else None

        def prepare_here() -> Prepared:
            if membership is not None:
                prepared = prepare_elastic(config, task, membership, lock=lock, tell=tell, plan=plan)
            else:
                prepared = prepare(config, task, lock=lock, tell=tell, plan=plan, ranks=world.size, resume=resume)
            on_plan(prepared.plan)
            return prepared

        folder, found = _from_rank_0(world, prepare_here)
        resumed = has_checkpoint(folder) if config.run.elastic else resume is not None
        result = train_rank(config, task, found, folder, resume=resumed)
        assert result is not None, "only the ranks of a supervisor leave before the end"
        if world.rank == 0:
            finish(folder, found)
        world.leave()
    return FinishedRun(folder=folder, plan=found, result=result, rank=world.rank)


def _from_rank_0(world: World, prepare_here: Callable[[], Prepared]) -> tuple[RunFolder, Plan]:
    """Return the folder and the plan that rank 0 has prepared. The other ranks wait, however long profiling takes.

    Raises:
        NotPrepared: rank 0 raised an error of GraphPipe's, which it raises here too.
    """
    problems: list[GraphPipeError] = []

    def work() -> dict[str, Any] | None:
        if world.rank:
            return None
        try:
            prepared = prepare_here()
        except GraphPipeError as error:
            problems.append(error)
            return None
        return {"folder": str(prepared.folder), "plan": to_body(prepared.plan)}

    message = wait_for_ranks(world, work)[0]
    for problem in problems:
        raise problem
    if message is None:
        raise NotPrepared("rank 0 could not prepare the training", remedy="Look at rank 0's own message.")
    return RunFolder(Path(message["folder"])), from_body(Plan, message["plan"], "the plan of rank 0")
