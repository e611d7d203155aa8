"""What surrounds a training: before it a plan and its prediction, after it the comparison."""

from dataclasses import replace
from pathlib import Path

from graphpipe.api import check_settings, choose_backwards, estimate, plan, simulate
from graphpipe.cli.output import Output
from graphpipe.cluster import Cluster
from graphpipe.cluster.presets import resolve
from graphpipe.costs import CostModel, CostTable
from graphpipe.costs.check_units import warn_of_units
from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import read_json
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import follow
from graphpipe.model.split.split import split
from graphpipe.plans import Plan
from graphpipe.profiler.profile import profile
from graphpipe.report import measured_table, plan_table, summarise, summary_lines
from graphpipe.run.checkpoint.checkpoints import settle
from graphpipe.run.checkpoint.folder import checkpoints_in
from graphpipe.run.checkpoint.snapshot import PLAN
from graphpipe.run.checkpoint.training_state import TRAINING, TrainingState
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.faults.fault import check_faults, parse_faults
from graphpipe.run.faults.phases import phases_by_rank
from graphpipe.simulator import predict
from graphpipe.trace import Trace, compare, save_chrome
from graphpipe.training import train_rank as files
from graphpipe.training.config.optimizers import build_optimizer
from graphpipe.training.config.settings import RunSettings, TrainConfig
from graphpipe.training.run_folder.run_lock import LOCK, RunLock
from graphpipe.training.task.task import Task, as_batch, load_task
from graphpipe.training.telemetry.loggers import check_loggers
from graphpipe.units import format_seconds


def load(config: TrainConfig) -> Task:
    """Return the task of a configuration, with its initial weights.

    Raises:
        InvalidInput: there is none.
    """
    return load_task(config.task, config.folder, config.train.seed)


def prepare(
    config: TrainConfig,
    task: Task,
    plan_file: str | None,
    output: Output,
    *,
    lock: RunLock,
    ranks: int | None = None,
    resume: str | None = None,
) -> tuple[Path, Plan]:
    """Profile, plan and predict; show it, and save it in a new folder, or in that of the run to resume.

    Args:
        config: of the training.
        task: its task.
        plan_file: a plan to use instead of making one.
        output: where it is shown.
        lock: takes the folder, before anything in it is changed.
        ranks: that are there already; None: as many as the plan uses will be started.
        resume: the folder of a run, whose last checkpoint's plan is used if it is for this cluster.

    Returns:
        The folder, and the plan with its prediction.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the plan is for another model, batch or number of ranks; costs or cluster cannot be used; or
            there is no checkpoint to resume from, or another training writes to the folder.
        CheckpointCorrupt: every checkpoint is damaged.
    """
    check_loggers(config.train.loggers)
    if resume and (Path(resume) / files.CHECKPOINTS).is_dir():
        lock.take(Path(resume))
    steps = files.count_steps(config, task)
    if resume:
        plan_file = plan_file or _resumed_plan(config, Path(resume), steps, output)
    found = load_plan(config, task, plan_file) if plan_file else make_plan(config, task, output)
    Placement.of(found, ranks or len(found.used_devices))
    check_faults(
        parse_faults(config.train.faults),
        phases_by_rank(found, ranks or len(found.used_devices)),
        steps=steps,
        every=config.train.checkpoint_every,
        timeout_seconds=config.run.timeout_seconds,
    )
    directory = Path(resume) if resume else new_directory(config.run)
    lock.take(directory)
    (directory / files.FAULTS).unlink(missing_ok=True)
    config.save(directory / files.CONFIG)
    save_plan(found, directory, output)
    return directory, found


def save_plan(plan: Plan, directory: Path, output: Output) -> None:
    """Show a plan that is about to be run, and write it and its prediction to the run's folder.

    What came of the run before goes: a run that has results is complete.
    """
    trace = simulate(plan)
    assert plan.prediction is not None
    output.show(plan_table(plan, plan.prediction))
    output.show(*summary_lines(summarise(plan, plan.prediction)))
    plan.save(directory / files.PLAN)
    plan.costs.save(directory / files.COSTS)
    trace.save(directory / files.PREDICTED)
    for name in (files.METRICS, files.MEASURED):
        (directory / name).unlink(missing_ok=True)


def conclude(directory: Path, plan: Plan, output: Output) -> None:
    """Show and save what came of a training, from the files that rank 0 wrote."""
    result = read_json(directory / files.METRICS)
    predicted = Trace.load(directory / files.PREDICTED)
    if (directory / files.MEASURED).exists():
        measured = Trace.load(directory / files.MEASURED)
        save_chrome(directory / files.CHROME, [predicted, measured])
        output.show(measured_table(compare(predicted, measured), [stage.name for stage in plan.stages]))
    else:
        save_chrome(directory / files.CHROME, [predicted])
        output.show("no step was left to do: none is compared with its prediction task by task")
    accuracy = "" if result["accuracy"] is None else f", held-out accuracy {result['accuracy']:.1%}"
    output.show(
        f"{result['steps']} steps in {format_seconds(result['train_seconds'])}: loss {result['loss_first']:.4f} -> "
        f"{result['loss_last']:.4f}{accuracy}",
        f"step: predicted {format_seconds(result['step_seconds_predicted'])}, measured "
        f"{format_seconds(result['step_seconds_measured'])} ({result['samples_per_second']:,.1f} samples/s)",
        f"written to {directory}: {', '.join(sorted({path.name for path in directory.iterdir()} - {LOCK}))}",
    )
    output.emit(result | {"directory": str(directory)})


def how_to_go_on(directory: Path) -> str:
    """Return what to do about a training that was broken off."""
    found = checkpoints_in(directory / files.CHECKPOINTS)
    if not found:
        return f"{directory} has no checkpoint to go on from: train.checkpoint_every=STEPS makes some"
    return f"the same command with --resume {directory} goes on from its last checkpoint"


def make_plan(config: TrainConfig, task: Task, output: Output, cluster: Cluster | None = None) -> Plan:
    """Return a new plan; None is the whole cluster."""
    cluster = cluster or resolve(config.cluster)
    settings = config.plan
    check_settings(  # before profiling, which takes a while
        batch_size=config.train.batch_size,
        planner=settings.planner,
        micro_batch=settings.micro_batch,
        mixed_micro_batches=settings.mixed_micro_batches,
        schedule=settings.schedule,
    )
    captured = follow(task.module, task.example_inputs)
    graph = captured.graph
    found = plan_for(config, graph, _costs(config, task, graph, cluster, output), cluster)
    return choose_backwards(found, task.module, captured=captured)


def plan_for(config: TrainConfig, graph: Graph, costs: CostTable, cluster: Cluster) -> Plan:
    """Return a plan as the configuration wants it.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the settings cannot be used.
    """
    settings = config.plan
    return plan(
        graph,
        costs,
        cluster,
        batch_size=config.train.batch_size,
        planner=settings.planner,
        micro_batch=settings.micro_batch,
        mixed_micro_batches=settings.mixed_micro_batches,
        schedule=settings.schedule,
    )


def _costs(config: TrainConfig, task: Task, graph: Graph, cluster: Cluster, output: Output) -> CostTable:
    if config.plan.costs == "estimate":
        return estimate(graph, cluster)
    if config.plan.costs != "profile":
        path = Path(config.folder) / config.plan.costs
        costs = CostTable.load(path)
        warn_of_units(CostModel(graph, costs, cluster), str(path))
        return costs
    output.show(f"profiling {len(graph.ops)} operators as they will run on {cluster.name}")
    size = config.train.batch_size
    inputs, targets = as_batch(next(iter(task.epoch(0, size, config.train.seed))), "epoch")
    return profile(
        task.module,
        inputs,
        cluster,
        graph=graph,
        loss_fn=task.loss_fn,
        targets=targets,
        batch_sizes=sorted({max(1, size >> halvings) for halvings in range(8)}),
        optimizer=lambda parameters: build_optimizer(config.optimizer, parameters),
    )


def load_plan(config: TrainConfig, task: Task, path: str) -> Plan:
    """Return the plan of a file, with a new prediction.

    Raises:
        InvalidInput: it is for another batch or model.
    """
    loaded = Plan.load(path)
    if loaded.batch_size != config.train.batch_size:
        raise InvalidInput(
            f"the plan is for batches of {loaded.batch_size}, the configuration says {config.train.batch_size}",
            where=path,
            remedy=f"Plan again, or set train.batch_size={loaded.batch_size}.",
        )
    warn_of_units(loaded.cost_model, path)
    split(task.module, loaded)
    return replace(loaded, prediction=predict(loaded))


def _resumed_plan(config: TrainConfig, run: Path, steps: int, output: Output) -> str | None:
    # The plan the run had, if it is for the cluster there is now.
    checkpoint = settle(run / files.CHECKPOINTS)
    training = TrainingState.load(checkpoint / TRAINING)
    training.check(seed=config.train.seed, batch_size=config.train.batch_size, where=str(checkpoint))
    training.check_unfinished(steps, results=(run / files.METRICS).exists(), where=str(checkpoint))
    output.show(f"resuming after step {training.step} from {checkpoint}")
    plan_file = checkpoint / PLAN
    if Plan.load(plan_file).cluster == resolve(config.cluster):
        return str(plan_file)
    output.show(f"the run was planned for another cluster than {config.cluster}: planning again")
    return None


def new_directory(settings: RunSettings) -> Path:
    for number in range(1, 100_000):
        directory = Path(settings.directory) / f"{settings.name}-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidInput(f"cannot be made: {error.strerror}", where=str(directory)) from None
        return directory
    raise InvalidInput("holds 100,000 runs", where=settings.directory, remedy="Choose another run.directory.")
