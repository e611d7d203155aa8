"""What comes before a training: its plan, the prediction, and its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.planners.gradients_apart import place_gradients
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import newest_resumable
from graphpipe.run.checkpoint.manifest import PLAN, TRAINING
from graphpipe.run.checkpoint.training_state import TrainingState
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.faults.check_faults import check_faults, phases_by_rank
from graphpipe.run.faults.fault import parse_faults
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.training.changed_settings import asks_for_another_plan, changed_settings, sentence, settings_of
from graphpipe.training.check_task import check_task
from graphpipe.training.config.resumed_settings import Changed, check_optimizer, check_own, check_schedule
from graphpipe.training.config.settings import RunSettings, TrainConfig
from graphpipe.training.epoch_sizes import check_sizes
from graphpipe.training.make_plan import make_plan, use_plan, with_policy_of
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.task.callback import CALLBACKS
from graphpipe.training.task.count_steps import check_data, count_steps, left_out
from graphpipe.training.task.factories import check_factories
from graphpipe.training.task.initial_weights import initial_weights
from graphpipe.training.task.sample_work import check_work
from graphpipe.training.task.task import Task
from graphpipe.training.telemetry.loggers import check_loggers


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A training that the ranks can start: its configuration, plan and prediction are in its folder."""

    folder: RunFolder
    plan: Plan
    """With its prediction."""
    trace: Trace
    """The step as the simulator predicts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """A training that could be started: nothing of it is written."""

    plan: Plan
    """With its prediction."""
    captured: Captured
    """The model as it was captured for the plan."""
    steps: int


def prepare(
    config: TrainConfig,
    task: Task,
    *,
    lock: RunLock,
    tell: Callable[[str], None],
    plan: Plan | str | Path | None = None,
    ranks: int | None = None,
    resume: RunFolder | None = None,
) -> Prepared:
    """Profile, plan and predict, and save everything in a new folder, or in the folder of the run to resume.

    Args:
        config: of the training.
        task: its task.
        lock: locks the folder before anything in it is changed.
        tell: called with a line of text for each thing that takes a while.
        plan: a plan, or a file of one, to use instead of making one.
        ranks: number of ranks that are running already. None: as many as the plan uses will be started.
        resume: the run to resume. The plan of its last checkpoint is used if it is for this cluster. Otherwise the new
            plan has its weight policy.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the plan is for another model, mini-batch size or number of ranks; costs or cluster cannot be
            used; the plan of a new run trains otherwise than plain PyTorch; there is no checkpoint to resume from; or
            another training writes to the folder.
        CheckpointCorrupt: every checkpoint is damaged.
    """
    check_names(config)
    if resume and resume.checkpoints.is_dir():
        lock.take(resume)
    planned = plan_training(config, task, tell=tell, plan=plan, ranks=ranks, resume=resume)
    folder = resume or _new_folder(config.run)
    lock.take(folder)
    folder.faults.unlink(missing_ok=True)
    config.save(folder.config)
    save_capture(planned.captured, folder.capture)
    return Prepared(folder=folder, plan=planned.plan, trace=save_plan(planned.plan, folder))


def check_names(config: TrainConfig) -> None:
    """Check the loggers and callbacks that a configuration names.

    Raises:
        InvalidInput: one is unknown, or its package is not installed.
    """
    check_loggers(config.train.loggers)
    for name in config.train.callbacks:
        CALLBACKS.find(name, "train.callbacks")


def plan_training(
    config: TrainConfig,
    task: Task,
    *,
    tell: Callable[[str], None],
    plan: Plan | str | Path | None = None,
    ranks: int | None = None,
    resume: RunFolder | None = None,
) -> PlannedTraining:
    """Check the task, its data and its settings, and plan. Nothing is written but caches.

    Args, Raises: as `prepare`.
    """
    check_factories(config, task, tell)
    _check_weights(config, task)
    check_work(task, config.train.balance)
    steps = count_steps(config, task)
    check_data(config, task)
    if line := left_out(config, task):
        tell(line)
    planned = config
    if resume and plan is None:
        last, plan, changed = _resumed_plan(config, task, resume, steps, tell)
        planned = config if {"plan.weights", "plan.predictor"} & {*changed} else with_policy_of(config, last)
    if plan is not None:
        found, captured = use_plan(config, task, plan)
    else:
        found, captured = make_plan(planned, task, Cluster.resolve(config.cluster), tell)
    RankPlacement.of(found, ranks or len(found.used_devices))
    if config.train.gradients_apart:  # Every rank will place them, alike.
        place_gradients(found, config.train.gradients_apart)
    check_faults(
        parse_faults(config.train.faults),
        phases_by_rank(found, ranks or len(found.used_devices)),
        steps=steps,
        every=config.train.checkpoint_every,
        timeout_seconds=config.run.timeout_seconds,
    )
    check_sizes(config, task, found)
    if not resume:
        check_task(config, task, found, captured, tell)
    return PlannedTraining(plan=found, captured=captured, steps=steps)


def _check_weights(config: TrainConfig, task: Task) -> None:
    # Before anything that takes a while.
    source = initial_weights(config, task)
    if source is not None:
        source.check(task.model)


def save_plan(plan: Plan, folder: RunFolder) -> Trace:
    """Write a plan that the ranks run next and its costs and prediction to the run's folder, and return the prediction.

    The results of the run so far are removed, because a run with results is complete.
    """
    trace = simulate(plan)
    plan.save(folder.plan)
    plan.costs.save(folder.costs)
    trace.save(folder.predicted_trace)
    for earlier in (folder.metrics, folder.measured_trace, folder.learned_costs):
        earlier.unlink(missing_ok=True)
    return trace


def _resumed_plan(
    config: TrainConfig, task: Task, run: RunFolder, steps: int, tell: Callable[[str], None]
) -> tuple[Plan, Path | None, dict[str, Any]]:
    # The plan of the last checkpoint, its file, or None if another plan is needed, and the settings that have changed.
    checkpoint = newest_resumable(run.checkpoints)
    training = TrainingState.load(checkpoint / TRAINING)
    training.check(seed=config.train.seed, batch_size=config.train.batch_size, where=str(checkpoint))
    training.check_unfinished(steps, results=run.metrics.exists(), where=str(checkpoint))
    tell(f"resuming after step {training.step} from {checkpoint}")
    last, before = Plan.load(checkpoint / PLAN), settings_of(run)
    changed = changed_settings(before, config)
    _check_changed(config, task, before, changed)
    if config.train.initial_weights and "train.initial_weights" in changed:
        raise InvalidInput(
            f"the run has begun with other weights, and goes on with those of {checkpoint}",
            where="train.initial_weights",
            remedy="Leave it out, or begin a new run.",
        )
    if changed:
        tell(sentence(changed, training.step))
    if last.cluster != Cluster.resolve(config.cluster):
        tell(f"the run was planned for another cluster than {config.cluster}: planning again")
        return last, None, changed
    if others := asks_for_another_plan(changed):
        tell(f"{', '.join(others)} changed: planning again")
        return last, None, changed
    return last, checkpoint / PLAN, changed


def _check_changed(config: TrainConfig, task: Task, before: TrainConfig | None, changed: Changed) -> None:
    check_own(changed, {"optimizer": task.optimizer is not None, "lr_schedule": task.scheduler is not None})
    if before is not None and task.optimizer is None:
        check_optimizer(before.optimizer, config.optimizer, changed)
    if task.scheduler is None:
        check_schedule(config.lr_schedule, changed)


def _new_folder(settings: RunSettings) -> RunFolder:
    for number in range(1, 100_000):
        directory = Path(settings.directory) / f"{settings.name or 'run'}-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidInput(f"cannot be made: {error.strerror}", where=str(directory)) from None
        return RunFolder(directory)
    raise InvalidInput("holds 100,000 runs", where=settings.directory, remedy="Choose another run.directory.")
